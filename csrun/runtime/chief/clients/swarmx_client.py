"""Chief's client of SwarmX: sends the tasks their places in the tree, and connects the wafers."""

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from csrun.base.run_config import TraceSteps
from csrun.context.broadcast_tree import wafers_below
from csrun.runtime.chief.clients.peer_channels import PeerChannels
from csrun.runtime.wire import messages
from csrun.runtime.wire.rendezvous import RunFolder, join_swarmx


@dataclass(frozen=True)
class SwarmxConnections:
    """A wafer's connections to a SwarmX task, one per MemoryX task, which the caller closes.

    names: names of the other ends.
    """

    names: tuple[str, ...]
    descriptors: list[int]


def connect_wafers(
    peers: PeerChannels,
    folder: RunFolder,
    tasks: Sequence[str],
    memoryx: tuple[str, ...],
    wafers: Sequence[str],
    precision: str,
    trace_steps: TraceSteps | None,
) -> list["SwarmxConnections"]:
    """Set up the tree of SwarmX tasks; return the connections of each wafer to it.

    The last tasks may have no place in the tree.
    """
    below = wafers_below(len(wafers))
    used = tasks[: len(below)]
    for number, (task, own) in enumerate(zip(used, below, strict=True)):
        children = *used[number + 1 : number + 2], *(wafers[wafer] for wafer in own)
        parent = used[number - 1] if number else None
        peers[task].send(messages.RelayWeights(children, parent, memoryx, precision, trace_steps))
    for task in used:
        peers.expect(task, messages.RelayReady, 0)
    for name in memoryx:
        peers[name].send(messages.JoinSwarmX(used[0], name))
    above = {wafer: task for task, own in zip(used, below, strict=True) for wafer in own}
    return [
        SwarmxConnections(
            (task,) * len(memoryx), [_lane(folder, task, name, server) for server in memoryx]
        )
        for name, task in ((name, above[number]) for number, name in enumerate(wafers))
    ]


def _lane(folder: RunFolder, task: str, wafer: str, server: str) -> int:
    with closing(join_swarmx(folder, task, wafer, server)) as channel:
        # The channel closes its own descriptor; the wafer gets a duplicate.
        return os.dup(channel.bulk.fileno())
