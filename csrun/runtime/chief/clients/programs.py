"""Chief's side of a job's programs: orders to the peers, results in the wafer's memory."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from csrun.base.errors import PeerLost
from csrun.context import Role
from csrun.context.job import peer_name
from csrun.executable import Executable, Plan
from csrun.executable.arrays import Array, Batch, Bytes
from csrun.runtime.chief.machine import Feed, Program, StoreState, UpdatePause, relocate_to_store
from csrun.runtime.input_log import Feeding
from csrun.runtime.step.results import ResultSlots, StepResult, SystemsResults
from csrun.runtime.step.source import require_first_rows
from csrun.runtime.step.trace import Spans
from csrun.runtime.wire import messages

log = logging.getLogger("csrun")
# receiver of a wafer's reports about its waits
Awaited = messages.BatchStall | messages.WeightStall


@dataclass(frozen=True)
class LoadResult:
    """Result of loading a program: the wafers' results, and the streamers of its batches."""

    results: Sequence[Bytes]
    feeding: Feeding


class Peers(Protocol):
    """Peers of a run in other processes and on other machines, as a machine uses them."""

    def order(self, order: messages.RunSteps) -> None:
        """Send an order to the wafers."""

    def await_reply(
        self, order: messages.RunSteps, awaited: Callable[[Awaited], None]
    ) -> messages.StepsDone:
        """Wait for their merged replies; `awaited` is called with a wafer's report of a wait."""

    def has_reply(self) -> bool:
        """Return whether all of them have sent a message since the order."""

    def load(self, executable: Executable, number: int, feed: Feed) -> LoadResult:
        """Load the program of this number everywhere, with its own batches."""

    def load_sharing_batches(
        self, executable: Executable, other: int, feeding: Feeding
    ) -> LoadResult:
        """Load a program that uses the batches of another one."""

    def unload(self, number: int) -> None:
        """Free a program that will not run again."""

    def end(self, source: int) -> None:
        """Free the batches of a program that are no longer used."""

    def initialize(self, state: dict[str, Array]) -> None:
        """Initialize the state, where the store is."""

    def begin(self, source: int, first: int, last: int | None, data_order: bytes) -> None:
        """Begin a pass over the data of a program with its own batches."""

    def push(self, source: int, batch: Batch) -> None:
        """Send the next batch of a program with pushed batches."""

    @property
    def has_writable_state(self) -> bool:
        """Return whether the state may be written between orders."""

    def written(self) -> None:
        """Notify the wafers that the state was written."""

    def pause_updates(self) -> UpdatePause:
        """Make updates wait until the old state has been copied."""

    def traced(self, asks: bool) -> list[tuple[str, Spans]]:
        """Return the spans that they have traced, by name; all of them if `asks`."""

    def has_lost_peer(self) -> bool:
        """Return whether any peer of the run is gone."""

    def stop(self, results: messages.Results) -> None:
        """Send all peers the end of the run."""


@dataclass(frozen=True)
class ClusterOrder:
    """Order that was sent to the wafers."""

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
        return self.peers.has_reply()

    def finish(self) -> messages.StepsDone:
        """Wait for the wafers' replies.

        Raises: PeerLost if a peer of the run is lost
        """
        try:
            return self.peers.await_reply(self.order, self.awaited)
        except PeerLost as lost:
            lost.step = self.steps.first  # a restart for the same cause at the same step is futile
            raise


class ClusterProgram:
    """A program of a job, by number; the wafer process computes its steps, MemoryX updates.

    own: the program whose rings carry its batches; this one if they are its own.
    """

    runs_asynchronously = True

    def __init__(
        self, peers: Peers, plan: Plan, device: str, number: int, loaded: LoadResult, own: int
    ) -> None:
        self.plan, self.device, self.feeding = plan, device, loaded.feeding
        self.number, self.own = number, own
        self._peers = peers
        slots = [ResultSlots(plan, memory) for memory in loaded.results]
        self._results = SystemsResults(plan, slots)

    def begin(self, first: int = 0, last: int | None = None, data_order: bytes = b"") -> None:
        """Set the next batch to number `first` of its data set."""
        self._peers.begin(self.own, first, last, data_order)

    def push(self, batch: Batch) -> None:
        """Send the batch of the next step."""
        self._peers.push(self.own, batch)

    def run(self, steps: messages.StepOrder) -> messages.StepsDone:
        """Run steps; their updates are complete on return.

        Raises: PeerLost if a peer of the run is lost
        """
        return self.order(steps).finish()

    def order(self, steps: messages.StepOrder) -> ClusterOrder:
        """Send an order of steps, without waiting for it."""
        order = messages.RunSteps(steps, self.number)
        try:
            self._peers.order(order)
        except PeerLost as lost:
            lost.step = steps.first
            raise
        return ClusterOrder(self._peers, order, self._log_wait)

    def result(self, slot: int, step: int) -> StepResult:
        """Return the result of step number `slot` of the last call."""
        return self._results.read(slot, step)

    def losses(self, count: int) -> list[float]:
        """Return the losses of the last call's first `count` steps."""
        return self._results.losses(count)

    def _log_wait(self, awaited: Awaited) -> None:
        where = ""
        if isinstance(awaited, messages.WeightStall):
            what = f"{peer_name(Role.MEMORYX, 1 + awaited.server)} to update the weights"
        else:
            what = f"a batch of {self.feeding.streamers[awaited.streamer]}"
            stage = self.feeding.stage(awaited.streamer, awaited.stage)
            where = f", in stage '{stage}'" if stage else ""
        log.warning(f"The wafer has waited for {what} for {awaited.waited_s:.0f} s{where}")

    def has_lost_peer(self) -> bool:
        """Return whether a peer of the run is lost."""
        return self._peers.has_lost_peer()


class ClusterMachine(ClusterProgram):
    """A loaded run of a job; the chief reads the store in place."""

    def __init__(
        self,
        peers: Peers,
        executable: Executable,
        system: str,
        loaded: LoadResult,
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
        # users of batches: loaded programs by the program that owns their batches
        self._takers = {0: {0}}

    def load(self, executable: Executable, feed: Feed | Program) -> ClusterProgram:
        """Load another program over the same store."""
        executable = relocate_to_store(self.plan, executable, self._sram_bytes)
        number = len(self.plans)
        if isinstance(feed, ClusterProgram):
            require_first_rows(executable.plan.inputs, feed.plan.inputs)
            loaded, own = (
                self._peers.load_sharing_batches(executable, feed.own, feed.feeding),
                feed.own,
            )
        elif isinstance(feed, Feed):
            loaded, own = self._peers.load(executable, number, feed), number
        else:
            raise TypeError("a program can share batches only with a program of the same machine")
        self.plans.append(executable.plan)
        self._takers.setdefault(own, set()).add(number)
        self.arena_bytes = max(self.arena_bytes, executable.plan.arena_bytes)
        return ClusterProgram(self._peers, executable.plan, self.device, number, loaded, own)

    def unload(self, program: Program) -> None:
        """Free a program that will not run again."""
        if not isinstance(program, ClusterProgram):
            raise TypeError("a program must be unloaded by the machine that loaded it")
        self._peers.unload(program.number)
        takers = self._takers[program.own]
        # Batches are freed with the last program that uses them.
        takers.remove(program.number)
        if not takers:
            del self._takers[program.own]
            self._peers.end(program.own)

    def initialize(self) -> None:
        """Set all of the state to its initial values."""
        self._peers.initialize(self.state)

    @property
    def has_writable_state(self) -> bool:
        """Return whether the state may be written between orders."""
        return self._peers.has_writable_state

    def written(self) -> None:
        """Note that the state was written between two orders."""
        self._peers.written()

    def pause_updates(self) -> UpdatePause:
        """Make updates wait until the old state has been copied."""
        return self._peers.pause_updates()

    def traced(self, asks: bool = True) -> list[tuple[str, Spans]]:
        """Return the spans of each process except the chief, by name; as `Machine.traced`."""
        return self._peers.traced(asks)

    def close(self, results: messages.Results) -> None:
        """End the run in all processes, which return `results`."""
        self._peers.stop(results)
