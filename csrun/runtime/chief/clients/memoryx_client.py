"""Chief's clients of MemoryX, on this machine with its store mapped, or on another machine."""

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from typing import Any, TypeVar, cast

import numpy as np

from csrun.base.run_config import RunSettings
from csrun.executable import Executable, Plan, numbers_view, state_layout, state_views
from csrun.executable.arrays import Array
from csrun.executable.shards import Own, StoreShards, piece_starts
from csrun.executable.store_places import gradient_views
from csrun.records import log_lines
from csrun.runtime.chief.clients.peer_channels import PeerChannels
from csrun.runtime.chief.machine import StoreState, UpdatePause
from csrun.runtime.remote.state import SentState
from csrun.runtime.remote.store import ChannelPort
from csrun.runtime.step.update_gate import copying_order
from csrun.runtime.store.backing import MEMORIES
from csrun.runtime.store.residency import Residency, store_bytes
from csrun.runtime.store.tensors import FilePort, Port, stored_numbers, stored_state
from csrun.runtime.wire import messages
from csrun.runtime.wire.shared import Counter, SharedMemory
from csrun.runtime.wire.tcp import TcpChannel

M = TypeVar("M", bound=messages.AnyMessage)
# descriptors of a program on this machine, for each wafer: gradients, weights, mailbox
COUNTERS = 3


class ChiefStore:
    """Chief's end of the channel to one MemoryX task.

    parts: descriptors for the wafers, of the store or of the connection to another machine; they
        stay open for the run.
    systems: number of wafers.
    disk: disk of a store in a file on this machine.
    sent: tensors of a checkpoint from a task on another machine, after `state` was called.
    """

    def __init__(
        self,
        name: str,
        peers: PeerChannels,
        resources: ExitStack,
        shards: StoreShards,
        server: int,
        systems: int,
    ) -> None:
        self._name, self._channel, self._peers = name, peers[name], peers
        self._resources, self._shards, self._server = resources, shards, server
        self.is_remote = isinstance(self._channel, TcpChannel)
        self._counters = 0 if self.is_remote else systems * COUNTERS
        self.parts: list[int] = []
        self.disk: messages.StoreOnDisk | None = None
        self.sent: SentState | None = None

    def request_store(
        self,
        executable: Executable,
        settings: RunSettings,
        checkpoints: messages.CheckpointSpace | None,
        later_bytes: int,
    ) -> None:
        """Send the request to create the store."""
        directory, digest = str(executable.directory), executable.digest
        part = self._server, self._shards.servers, later_bytes
        layout = executable.plan.store
        load = messages.LoadStore(directory, digest, layout, settings, checkpoints, *part)
        self._channel.send(load)

    def wait_until_created(self) -> messages.StoreReady:
        """Wait until the store is created."""
        memories = 0 if self.is_remote else MEMORIES
        ready, parts = self._expect(messages.StoreReady, memories + self._counters)
        if isinstance(self._channel, TcpChannel):
            self.parts = [self._channel.bulk.fileno()]
        else:
            self.parts, self.disk = parts, ready.disk
        return ready

    def add(self, executable: Executable) -> list[int]:
        """Load another program's updates; on this machine also get its counters."""
        self._channel.send(messages.LoadUpdates(str(executable.directory), executable.digest))
        return self._expect(messages.UpdatesReady, self._counters)[1]

    def unload(self, number: int) -> None:
        """Free a program's updates, by its number."""
        self._channel.send(messages.UnloadProgram(number))

    def request_initial_values(self) -> None:
        """Send the request to initialize the state."""
        self._channel.send(messages.InitializeStore())

    def initialized(self) -> None:
        """Wait until the state is initialized."""
        self._expect(messages.StoreInitialized, 0)

    def state(self, plan: Plan) -> StoreState:
        """Return the tensors of its part of the state, for any location of the store."""
        own = self._shards.own(plan, self._server)
        if isinstance(self._channel, TcpChannel):
            self.sent = SentState(plan, own, self._channel)
            return _state_by(plan, ChannelPort(self._channel), own)
        memory, file, *counters = self.parts
        close_all(counters)
        if self.disk is None:
            os.close(file)
            mapped = self._resources.enter_context(closing(SharedMemory.attach(memory)))
            return StoreState(
                state_views(plan, mapped.bytes, own),
                numbers_view(plan, mapped.bytes),
                gradient_views(plan, mapped.bytes, own),
            )
        self._resources.callback(close_all, (memory, file))
        # not mapped, since that would count as the chief's memory
        residency = Residency(plan, self.disk.memory_bytes, own)
        return _state_by(plan, FilePort(memory, file, residency), own)

    def _expect(self, kind: type[M], descriptors: int) -> tuple[M, list[int]]:
        return self._peers.expect(self._name, kind, descriptors)


class ChiefStores:
    """Chief's client of all MemoryX tasks, which share the groups."""

    def __init__(
        self, plan: Plan, names: Sequence[str], peers: PeerChannels, resources: ExitStack
    ) -> None:
        self._plan = plan
        self.shards = StoreShards.of(plan, len(names))
        self._each = [
            ChiefStore(name, peers, resources, self.shards, server, plan.systems)
            for server, name in enumerate(names)
        ]

    @property
    def are_remote(self) -> bool:
        """Return whether the tasks are on other machines than the chief; all are, or none is."""
        return self._each[0].is_remote

    @property
    def parts(self) -> list[int]:
        """Descriptors for the wafers, task by task."""
        return [part for each in self._each for part in each.parts]

    @property
    def disks(self) -> tuple[messages.StoreOnDisk | None, ...]:
        """Disk files of the stores on this machine."""
        return tuple(each.disk for each in self._each)

    def make(
        self,
        executable: Executable,
        settings: RunSettings,
        checkpoints: messages.CheckpointSpace | None,
    ) -> str:
        """Create the stores; return a log line with their locations.

        Those on one machine are created one after the other, so that each sees the space left by
        the earlier ones.
        """
        owns = [self.shards.own(self._plan, server) for server in range(self.shards.servers)]
        nbytes = [store_bytes(self._plan, own) for own in owns]
        placed = []
        for server, each in enumerate(self._each):
            later_bytes = 0 if self.are_remote else sum(nbytes[server + 1 :])
            each.request_store(executable, settings, checkpoints, later_bytes)
            if not self.are_remote:
                placed.append(_placed(each.wait_until_created()))
        placed = placed or [_placed(each.wait_until_created()) for each in self._each]
        return log_lines.weight_stores(placed, len(piece_starts(self._plan)[0]))

    def add(self, executable: Executable) -> list[int]:
        """Load another program's updates; from tasks on this machine also get its counters."""
        self.shards.servers_of(executable.plan)  # each group belongs to one task
        return [part for each in self._each for part in each.add(executable)]

    def unload(self, number: int) -> None:
        """Free a program's updates, by its number."""
        for each in self._each:
            each.unload(number)

    def initialize(self) -> None:
        """Initialize the state, in all tasks concurrently."""
        for each in self._each:
            each.request_initial_values()
        for each in self._each:
            each.initialized()

    def pause_updates(self) -> UpdatePause:
        """Make the tasks' updates wait; tasks on other machines send the state meanwhile."""
        stores = [each.sent for each in self._each if each.sent is not None]
        found = {name: tensor for store in stores for name, tensor in store.hold().items()}
        # In the order of one store: a checkpoint has the same bytes for any number of tasks.
        sent = {name: found[name] for name in state_layout(self._plan)}

        def end() -> None:
            for store in stores:
                store.end()

        return UpdatePause(copying_order(self._plan), lambda count: None, end, sent)

    def state(self, plan: Plan) -> StoreState:
        """Return the state of all tasks, in the order of one store, and the numbers of the
        steps.
        """
        states, numbers, parts = zip(*(each.state(plan) for each in self._each), strict=True)
        found = {name: tensor for state in states for name, tensor in state.items()}
        first = numbers[0]
        everywhere = (
            first if first is None or len(numbers) == 1 else cast(Array, MirroredArray(numbers))
        )
        gradients = {name: array for part in parts for name, array in part.items()}
        return StoreState({name: found[name] for name in state_layout(plan)}, everywhere, gradients)


class MirroredArray:
    """Array that exists in several stores; a write goes to each.

    A read returns the maximum over the stores, since a task's copy is zero where it has not
    written.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = arrays
        self.shape = arrays[0].shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        # NaN is preserved
        found: Array = np.maximum.reduce([np.asarray(array) for array in self._arrays])
        return found if dtype is None else found.astype(dtype)

    def __setitem__(self, every: Any, values: Any) -> None:
        for array in self._arrays:
            array[every] = values


def _placed(ready: messages.StoreReady) -> log_lines.PlacedStore:
    disk = ready.disk
    return log_lines.PlacedStore(
        ready.nbytes, disk.folder if disk else None, disk.memory_bytes if disk else ready.nbytes
    )


def _state_by(plan: Plan, port: Port, own: Own) -> StoreState:
    return StoreState(stored_state(plan, port, own), stored_numbers(plan, port))


def parts_of(parts: Sequence[int], servers: int, system: int) -> list[int]:
    """Return the descriptors for one of several wafers; none from remote tasks.

    Of each task these are the wafer's own, after the store's memory if that is among them.
    """
    each = len(parts) // servers
    common = each % COUNTERS
    first = common + COUNTERS * system
    tasks = (parts[each * server :][:each] for server in range(servers))
    return [part for own in tasks for part in (*own[:common], *own[first : first + COUNTERS])]


def update_pause_of(counters: Sequence[Counter], plan: Plan) -> UpdatePause:
    """Return the hold on updates of this machine, which wait for these counters; plan: that of the
    store.
    """

    def copied(count: int) -> None:
        for counter in counters:
            counter.raise_by(count)

    return UpdatePause(copying_order(plan), copied, lambda: _close(counters))


def _close(counters: Iterable[Counter]) -> None:
    for counter in counters:
        counter.close()


def close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
