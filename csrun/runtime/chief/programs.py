"""The chief's end of a job's programs: orders to the peers, results in the wafer's memory."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from csrun.base.errors import PeerLost
from csrun.context import Role
from csrun.context.job import peer_name
from csrun.executable import Executable, Plan
from csrun.executable.arrays import Array, Batch, Bytes
from csrun.runtime.chief.machine import Feed, Program, StoreState, UpdateHold, over_store
from csrun.runtime.input_log import Feeding
from csrun.runtime.step.results import ResultSlots, StepResult, SystemsResults
from csrun.runtime.step.source import require_first_rows
from csrun.runtime.step.trace import Spans
from csrun.runtime.wire import messages

log = logging.getLogger("csrun")
Awaited = messages.BatchAwaited | messages.WeightsAwaited  # what a wafer says of its own waits


@dataclass(frozen=True)
class Loaded:
    """Result of loading a program: the wafers' results, and the streamers of its batches."""

    results: Sequence[Bytes]
    feeding: Feeding


class Peers(Protocol):
    """The parts of a run on other machines and in other processes, as a machine needs them."""

    def order(self, order: messages.RunSteps) -> None:
        """Give an order to the wafers."""

    def answer(
        self, order: messages.RunSteps, awaited: Callable[[Awaited], None]
    ) -> messages.StepsDone:
        """Wait for their answers to it, put together; `awaited` hears what one waits for."""

    def has_answer(self) -> bool:
        """Return whether all of them have said something since."""

    def load(self, executable: Executable, number: int, feed: Feed) -> Loaded:
        """Load the program of this number everywhere, with batches of its own."""

    def load_beside(self, executable: Executable, other: int, feeding: Feeding) -> Loaded:
        """Load a program that takes the batches of another one."""

    def unload(self, number: int) -> None:
        """Have a program let go, which nobody runs any more."""

    def end(self, source: int) -> None:
        """Have the batches of a program let go, which nobody takes any more."""

    def initialize(self, state: dict[str, Array]) -> None:
        """Give the state its first values, where the store is."""

    def begin(self, source: int, first: int, last: int | None, told: bytes) -> None:
        """Begin a pass over the data of a program with batches of its own."""

    def push(self, source: int, batch: Batch) -> None:
        """Give the next batch of a program whose batches are pushed."""

    @property
    def take_writes(self) -> bool:
        """Return whether the state may be written between orders."""

    def written(self) -> None:
        """Tell the wafers that the state was written."""

    def hold_updates(self) -> UpdateHold:
        """Have updates wait for what is copied of the state."""

    def traced(self, asks: bool) -> list[tuple[str, Spans]]:
        """Spans that they have traced, by their names; all of them if it asks."""

    def has_lost_peer(self) -> bool:
        """Return whether any peer of the run is gone."""

    def stop(self, results: messages.Results) -> None:
        """Tell every peer that the run is over."""


@dataclass(frozen=True)
class ClusterOrder:
    """An order that the wafers have."""

    peers: Peers
    order: messages.RunSteps
    awaited: Callable[[Awaited], None]

    @property
    def steps(self) -> messages.StepOrder:
        """The order, without the program's number."""
        return self.order.steps

    @property
    def is_done(self) -> bool:
        """Return whether `finish` will not wait long: it is done, or a wafer reports a wait."""
        return self.peers.has_answer()

    def finish(self) -> messages.StepsDone:
        """Wait for what the wafers have done.

        Raises: PeerLost when a peer of the run is lost.
        """
        try:
            return self.peers.answer(self.order, self.awaited)
        except PeerLost as lost:
            lost.step = self.steps.first  # a restart for the same cause at the same step is in vain
            raise


class ClusterProgram:
    """A program of a job, by its number: the wafer's process steps, MemoryX updates.

    own: the program whose rings its batches come by, which is this one if they are its own.
    """

    runs_apart = True

    def __init__(
        self, peers: Peers, plan: Plan, device: str, number: int, loaded: Loaded, own: int
    ) -> None:
        self.plan, self.device, self.feeding = plan, device, loaded.feeding
        self.number, self.own = number, own
        self._peers = peers
        slots = [ResultSlots(plan, memory) for memory in loaded.results]
        self._results = SystemsResults(plan, slots)

    def begin(self, first: int = 0, last: int | None = None, told: bytes = b"") -> None:
        """Set the next batch to number `first` of its data set."""
        self._peers.begin(self.own, first, last, told)

    def push(self, batch: Batch) -> None:
        """Give the batch of the next step."""
        self._peers.push(self.own, batch)

    def run(self, steps: messages.StepOrder) -> messages.StepsDone:
        """Run steps; committed on return.

        Raises: PeerLost when a peer of the run is lost.
        """
        return self.order(steps).finish()

    def order(self, steps: messages.StepOrder) -> ClusterOrder:
        """Have the wafers run them, and do not wait."""
        order = messages.RunSteps(steps, self.number)
        try:
            self._peers.order(order)
        except PeerLost as lost:
            lost.step = steps.first
            raise
        return ClusterOrder(self._peers, order, self._say_awaited)

    def result(self, slot: int, step: int) -> StepResult:
        """The result of the last call's step number `slot`."""
        return self._results.read(slot, step)

    def losses(self, count: int) -> list[float]:
        """Losses of the last call's first `count` steps."""
        return self._results.losses(count)

    def _say_awaited(self, awaited: Awaited) -> None:
        where = ""
        if isinstance(awaited, messages.WeightsAwaited):
            what = f"{peer_name(Role.MEMORYX, 1 + awaited.server)} to update the weights"
        else:
            what = f"a batch of {self.feeding.streamers[awaited.streamer]}"
            stage = self.feeding.stage(awaited.streamer, awaited.stage)
            where = f", in stage '{stage}'" if stage else ""
        log.warning(f"The wafer has waited for {what} for {awaited.waited_s:.0f} s{where}")

    def has_lost_peer(self) -> bool:
        """Return whether a part of the run is gone."""
        return self._peers.has_lost_peer()


class ClusterMachine(ClusterProgram):
    """A loaded run of a job; the chief reads the store where it is."""

    def __init__(
        self,
        peers: Peers,
        executable: Executable,
        system: str,
        loaded: Loaded,
        state: StoreState,
        programming_time_s: float,
        sram_bytes: int | None,
    ) -> None:
        super().__init__(peers, executable.plan, system, 0, loaded, 0)
        self.plans = [executable.plan]
        self.state, self.numbers, self.gradients = state
        self.programming_time_s = programming_time_s
        self.arena_bytes = executable.plan.arena_bytes
        self._sram_bytes = sram_bytes
        self._takers = {0: {0}}  # of batches: the programs that are loaded, by whose they are

    def load(self, executable: Executable, feed: Feed | Program) -> ClusterProgram:
        """Load another program over the same store."""
        executable = over_store(self.plan, executable, self._sram_bytes)
        number = len(self.plans)
        if isinstance(feed, ClusterProgram):
            require_first_rows(executable.plan.inputs, feed.plan.inputs)
            loaded, own = self._peers.load_beside(executable, feed.own, feed.feeding), feed.own
        elif isinstance(feed, Feed):
            loaded, own = self._peers.load(executable, number, feed), number
        else:
            raise TypeError("a program can share batches only with a program of the same machine")
        self.plans.append(executable.plan)
        self._takers.setdefault(own, set()).add(number)
        self.arena_bytes = max(self.arena_bytes, executable.plan.arena_bytes)
        return ClusterProgram(self._peers, executable.plan, self.device, number, loaded, own)

    def unload(self, program: Program) -> None:
        """Let go of a program that does not run any more."""
        if not isinstance(program, ClusterProgram):
            raise TypeError("a program must be unloaded by the machine that loaded it")
        self._peers.unload(program.number)
        takers = self._takers[program.own]
        # Batches are let go with the last program that takes them.
        takers.remove(program.number)
        if not takers:
            del self._takers[program.own]
            self._peers.end(program.own)

    def initialize(self) -> None:
        """Give all of the state its first values."""
        self._peers.initialize(self.state)

    @property
    def takes_writes(self) -> bool:
        """Return whether the state may be written between orders."""
        return self._peers.take_writes

    def written(self) -> None:
        """The state was written between two orders."""
        self._peers.written()

    def hold_updates(self) -> UpdateHold:
        """Have updates wait for what is copied of the state."""
        return self._peers.hold_updates()

    def traced(self, asks: bool = True) -> list[tuple[str, Spans]]:
        """Spans of each process but the chief's, by its name; as `Machine.traced`."""
        return self._peers.traced(asks)

    def close(self, results: messages.Results) -> None:
        """End the run in all its parts, which return `results`."""
        self._peers.stop(results)
