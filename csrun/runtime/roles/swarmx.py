"""SwarmX task: between the wafers of several systems and MemoryX on other machines.

It adds the gradients of its children and broadcasts weights to them: see `Relay`. Its neighbours
connect to it in a separate folder, as peers connect to the chief.
"""

import select
import socket
from collections.abc import Mapping
from contextlib import ExitStack, closing

from csrun.runtime.remote.relay import Relay
from csrun.runtime.step.trace import SpanRecorder
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.listener import Listener
from csrun.runtime.wire.messages import (
    AnyMessage,
    ReadTrace,
    RelayReady,
    RelayWeights,
    Results,
    Stop,
    Traced,
)
from csrun.runtime.wire.rendezvous import RunFolder, connection_name, join_swarmx, swarmx_folder
from csrun.runtime.wire.shared import Counter
from csrun.runtime.wire.tcp import TcpChannel


def serve(control: Channel, folder: RunFolder, name: str) -> Results:
    """Take the place in the tree that the chief assigns, if any, until it sends the end."""
    with ExitStack() as resources:
        task = _Task(control, folder, name, resources)
        while (results := task.handle(control.receive()[0])) is None:
            task.wait()
        return results


class _Task:
    """Running task: a relay for each MemoryX task."""

    def __init__(
        self, control: Channel, folder: RunFolder, name: str, resources: ExitStack
    ) -> None:
        self._control, self._folder, self._name = control, folder, name
        self._opened = resources.enter_context
        self._failed = self._opened(closing(Counter.create()))
        self._relays: list[Relay] = []
        self._poll = select.poll()
        for descriptor in (control.fileno(), self._failed.descriptor):
            self._poll.register(descriptor, select.POLLIN)

    def handle(self, order: AnyMessage) -> Results | None:
        """Execute a message of the chief; returns the results if it is the end."""
        match order:
            case Stop(results):
                return results
            case RelayWeights():
                self._relay(order)
            case ReadTrace():
                for part in (part for relay in self._relays for part in relay.recorder.parts()):
                    if part:
                        self._control.send(Traced(part))
                self._control.send(Traced(b""))
            case _:
                raise RuntimeError(f"chief: expected RelayWeights, got {type(order).__name__}")
        return None

    def wait(self) -> None:
        """Wait for a message of the chief, while the relays work.

        Raises: the error that ended a relay, except for a lost connection
        """
        self._poll.poll()
        for relay in self._relays:
            if relay.error is not None:
                raise relay.error

    def _relay(self, order: RelayWeights) -> None:
        lanes = self._lanes(order)
        for channel in lanes.values():
            self._opened(closing(channel))
        for server in order.memoryx:
            above = _bulk_of(lanes[connection_name(order.parent or server, server)])
            below = {
                child: _bulk_of(lanes[connection_name(child, server)]) for child in order.children
            }
            recorder = SpanRecorder(order.trace_steps)
            relay = Relay(above, below, order.precision, recorder, self._failed)
            self._relays.append(self._opened(closing(relay)))

    def _lanes(self, order: RelayWeights) -> Mapping[str, Channel]:
        """Return the connections to all neighbours; children connect to this task, and so does
        MemoryX.
        """
        parent, servers = order.parent or "", order.memoryx
        neighbours = order.children if parent else (*order.children, None)
        expected = {
            connection_name(peer or server, server) for peer in neighbours for server in servers
        }
        with closing(Listener(swarmx_folder(self._folder, self._name))) as listener:
            self._control.send(RelayReady())
            above: dict[str, Channel] = {}
            for server in servers if parent else ():
                joined = join_swarmx(self._folder, parent, self._name, server)
                above[connection_name(parent, server)] = joined
            return above | listener.accept(expected)


def _bulk_of(neighbour: Channel) -> socket.socket:
    if not isinstance(neighbour, TcpChannel):
        raise RuntimeError(f"{neighbour.peer}: must not share a machine with a SwarmX task")
    return neighbour.bulk
