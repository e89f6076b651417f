"""SwarmX: between the wafers of several systems and MemoryX, where these are on other machines.

It adds up what comes from its children, and sends them what is for all: see `Relay`. Its neighbours
meet it in a folder of its own, as peers do the chief.
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
from csrun.runtime.wire.rendezvous import RunFolder, join_swarmx, lane_name, swarmx_folder
from csrun.runtime.wire.shared import Counter
from csrun.runtime.wire.tcp import TcpChannel


def serve(control: Channel, folder: RunFolder, name: str) -> Results:
    """Take the place in the tree that the chief gives this task, if any, until it says stop."""
    with ExitStack() as resources:
        task = _Task(control, folder, name, resources)
        while (results := task.handle(control.receive()[0])) is None:
            task.wait()
        return results


class _Task:
    """The task at work: a relay for each MemoryX task."""

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
        """Do what the chief says; the results, when that is to stop."""
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
        """Until the chief says something, while the relays work.

        Raises: what has ended one of them, but for a connection that is lost
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
            above = _bulk_of(lanes[lane_name(order.parent or server, server)])
            below = {child: _bulk_of(lanes[lane_name(child, server)]) for child in order.children}
            recorder = SpanRecorder(order.trace_steps)
            relay = Relay(above, below, order.precision, recorder, self._failed)
            self._relays.append(self._opened(closing(relay)))

    def _lanes(self, order: RelayWeights) -> Mapping[str, Channel]:
        """The connections to all neighbours; those below come here, and MemoryX."""
        parent, servers = order.parent or "", order.memoryx
        neighbours = order.children if parent else (*order.children, None)
        expected = {lane_name(peer or server, server) for peer in neighbours for server in servers}
        with closing(Listener(swarmx_folder(self._folder, self._name))) as listener:
            self._control.send(RelayReady())
            above: dict[str, Channel] = {}
            for server in servers if parent else ():
                joined = join_swarmx(self._folder, parent, self._name, server)
                above[lane_name(parent, server)] = joined
            return above | listener.accept(expected)


def _bulk_of(neighbour: Channel) -> socket.socket:
    if not isinstance(neighbour, TcpChannel):
        raise RuntimeError(f"{neighbour.peer}: must not share a machine with a SwarmX task")
    return neighbour.bulk
