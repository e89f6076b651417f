"""Memory of a wafer process: the arena, and the stores of the MemoryX tasks that it reaches."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack, closing

from csrun.executable import Plan, Runtime
from csrun.executable.arrays import Bytes
from csrun.executable.bind import store_of
from csrun.executable.shards import StoreShards
from csrun.executable.store_places import AnyStore, ShardedStore
from csrun.runtime.remote.store import StoreLink
from csrun.runtime.remote.weights import GradientMemory, RemoteMemoryxLink, RemoteWeights
from csrun.runtime.step.trace import LayerMarks
from csrun.runtime.step.update_gate import UpdateGate
from csrun.runtime.step.weights import Weights
from csrun.runtime.store.backing import MEMORIES, mapped
from csrun.runtime.store.pages import StorePages
from csrun.runtime.wire import messages
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.shared import Counter, SharedMemory, Waiter


class WaferMemory:
    """Arena and store, for any location of the store; all programs are bound to this memory.

    owner: plan that defines the layout of the store.
    arena: as large as the largest program needs.
    """

    def __init__(
        self,
        owner: Plan,
        request: messages.LoadWafer,
        marks: LayerMarks,
        store_parts: list[int],
        control: Channel,
        resources: ExitStack,
    ) -> None:
        self.owner, self.runtime = owner, Runtime(request.seed, marks)
        self.gate = UpdateGate(owner)  # of a store in the arena
        self.remote: _RemoteStores | None = None
        self.pages: list[StorePages] = []
        self.store: AnyStore
        self._shards = StoreShards.of(owner, max(1, request.servers))
        self._opened = resources.enter_context
        self.arena = self._opened(closing(SharedMemory.create("arena", owner.arena_bytes)))
        if request.remote_stores:
            names = request.remote_stores
            self.remote = _RemoteStores(owner, names, store_parts, control, resources)
            self.store = self.remote.gradients.bytes
        elif request.servers:
            self.store = self._mapped(request.disks, store_parts)
        else:
            self.store = self.resident

    @property
    def resident(self) -> Bytes:
        """The store, if it is in the arena."""
        return store_of(self.owner, self.arena.bytes, None)

    def server_of(self, plan: Plan) -> tuple[int, ...]:
        """Return the MemoryX task of each group of a program."""
        return self._shards.servers_of(plan)

    def _mapped(
        self, disks: Sequence[messages.StoreOnDisk | None], store_parts: list[int]
    ) -> AnyStore:
        """Return the mapped stores of this machine's MemoryX tasks."""
        memories, each = [], len(store_parts) // len(disks)
        for server, disk in enumerate(disks):
            parts = store_parts[each * server :][:MEMORIES]
            store = mapped(self.owner, parts, disk, self._shards.own(self.owner, server))
            self._opened(closing(store))
            self.pages.append(store.pages)
            memories.append(store.memory.bytes)
        return memories[0] if len(memories) == 1 else ShardedStore(self._shards, memories)

    def make_room(self, plan: Plan) -> None:
        """Enlarge the arena for a program if needed; existing mappings stay valid."""
        if plan.arena_bytes > len(self.arena.bytes):
            self.arena = self._opened(closing(self.arena.resized(plan.arena_bytes)))


class _RemoteStores:
    """Stores of tasks on other machines: connections, and gradients until they are sent.

    names: names of the other ends.
    """

    def __init__(
        self,
        owner: Plan,
        names: Sequence[str],
        connections: list[int],
        control: Channel,
        resources: ExitStack,
    ) -> None:
        self.gradients = GradientMemory(owner.store.nbytes)
        self._ends = []
        for server, (name, connection) in enumerate(zip(names, connections, strict=True)):
            link = StoreLink(socket.socket(fileno=connection), name)
            resources.enter_context(closing(link))
            waiters = (stall_waiter(each, control, server) for each in (link.arrived, link.sent))
            self._ends.append(RemoteMemoryxLink(link, *waiters))

    def weights(self, plan: Plan, arena: Bytes, server_of: Sequence[int], number: int) -> Weights:
        """Return the weights of a program, by its number."""
        return RemoteWeights(plan, arena, self.gradients, self._ends, server_of, number)


def stall_waiter(counter: Counter, control: Channel, server: int, brief_s: float = 0.0) -> Waiter:
    """Return a waiter for a MemoryX task that reports long waits to the chief."""

    def overdue(waited_s: float) -> None:
        control.send(messages.WeightStall(waited_s, server))

    return Waiter(counter, control, overdue, brief_s)
