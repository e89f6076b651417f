"""MemoryX as the chief has it: on this machine with its store mapped or opened, or on another."""

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Protocol, TypeVar

from csrun.executable import Executable, Plan, numbers_view, state_views
from csrun.executable.bind import Array
from csrun.records import log_lines
from csrun.runtime.remote.store import ChannelPort
from csrun.runtime.store.residency import Residency
from csrun.runtime.store.tensors import FilePort, Port, stored_numbers, stored_state
from csrun.runtime.wire import messages
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.shared import SharedMemory
from csrun.runtime.wire.tcp import TcpChannel

M = TypeVar("M", bound=messages.AnyMessage)
State = tuple[dict[str, Array], Array | None]  # tensors of a checkpoint, numbers of the steps
DESCRIPTORS = 3  # of a store on this machine: memory, gradients, weights
COUNTERS = 2  # of another program: gradients, weights


class Expect(Protocol):
    """Waits for MemoryX's next message, while no other peer ends."""

    def __call__(self, kind: type[M], descriptors: int) -> tuple[M, list[int]]: ...


class ChiefStore:
    """The chief's end of the channel to MemoryX.

    parts: what the wafer is given: the descriptors of the store, or that of the connection to
    another machine; they stay open as long as the run. disk: of a store in a file on this one.
    """

    def __init__(self, channel: Channel, expect: Expect, resources: ExitStack) -> None:
        self._channel, self._expect, self._resources = channel, expect, resources
        self._is_afar = isinstance(channel, TcpChannel)
        self.parts: list[int] = []
        self.disk: messages.StoreOnDisk | None = None

    def make(
        self,
        executable: Executable,
        settings: messages.RunSettings,
        first_step: int,
        checkpoints: messages.CheckpointSpace | None,
    ) -> str:
        """Have the store made; a line that says where it is."""
        directory, digest = str(executable.directory), executable.digest
        self._channel.send(messages.LoadStore(directory, digest, settings, first_step, checkpoints))
        ready, parts = self._expect(messages.StoreReady, 0 if self._is_afar else DESCRIPTORS)
        if isinstance(self._channel, TcpChannel):
            self.parts = [self._channel.bulk.fileno()]
        else:
            self.parts, self.disk = parts, ready.disk
        folder = ready.disk.folder if ready.disk else None
        memory_bytes = ready.disk.memory_bytes if ready.disk else ready.nbytes
        return log_lines.weight_store(ready.nbytes, folder, memory_bytes)

    def add(self, executable: Executable) -> list[int]:
        """Have another program's updates loaded: its counters, from a MemoryX on this machine."""
        self._channel.send(messages.LoadUpdates(str(executable.directory), executable.digest))
        return self._expect(messages.UpdatesReady, 0 if self._is_afar else COUNTERS)[1]

    def initialize(self) -> None:
        """Have the state get its first values."""
        self._channel.send(messages.InitializeStore())
        self._expect(messages.StoreInitialized, 0)

    def state(self, plan: Plan) -> State:
        """The state, wherever the store is; the wafer has been given its parts."""
        if isinstance(self._channel, TcpChannel):
            return self._state_by(plan, ChannelPort(self._channel))
        memory, *counters = self.parts
        close_all(counters)
        if self.disk is None:
            mapped = self._resources.enter_context(closing(SharedMemory.attach(memory)))
            return state_views(plan, mapped.bytes), numbers_view(plan, mapped.bytes)
        self._resources.callback(os.close, memory)  # not mapped, which would count as the chief's
        return self._state_by(plan, FilePort(memory, Residency(plan, self.disk.memory_bytes)))

    def _state_by(self, plan: Plan, port: Port) -> State:
        return stored_state(plan, port), stored_numbers(plan, port)


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
