"""CPU run: all roles in this process, with the same Executable and the same bits."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from time import perf_counter

from threadpoolctl import ThreadpoolController

from csrun.base.run_config import RunSettings
from csrun.data import Dataset
from csrun.executable import Executable, Plan, RunMode, Runtime, numbers_view, state_views
from csrun.executable.arrays import Array, Batch, Bytes, zeros
from csrun.executable.bind import store_of
from csrun.executable.store_places import gradient_views
from csrun.executable.threads import threads_of
from csrun.runtime.chief.machine import Feed, Program, UpdatePause, relocate_to_store
from csrun.runtime.cpus import cpus_of, thread_count
from csrun.runtime.input_log import Feeding
from csrun.runtime.step.engine import Engine, make_compute
from csrun.runtime.step.placed_program import PlacedProgram
from csrun.runtime.step.pushed import PushedSource
from csrun.runtime.step.results import ResultSlots, StepResult, result_slot_bytes, result_slots
from csrun.runtime.step.sent_weights import SentWeights
from csrun.runtime.step.source import BatchSource, FirstRows, InProcessSource
from csrun.runtime.step.timed import timed
from csrun.runtime.step.trace import LayerMarks, SpanRecorder, Spans
from csrun.runtime.step.update_gate import UpdateGate, copying_order
from csrun.runtime.step.updates import Updates
from csrun.runtime.step.weights import (
    ArenaOwner,
    InProcessStreamedWeights,
    ResidentWeights,
    Slots,
    Weights,
)
from csrun.runtime.store.store_initialization import initialize
from csrun.runtime.wire.messages import Results, StepOrder, StepsDone


@dataclass
class _ProgramMemory:
    """Memory shared by the programs of a run; arena: the largest one needed so far."""

    arena: Bytes
    store: Bytes
    runtime: Runtime
    recorder: SpanRecorder
    gate: UpdateGate
    threads: int | None  # limit set by the user
    plans: list[Plan] = field(default_factory=list)
    arena_owner: ArenaOwner = field(default_factory=ArenaOwner)


@dataclass(frozen=True)
class _BatchFeed:
    """Source of a program's batches: its own data set, or the first rows of another program's.

    own: source of its own batches.
    """

    source: BatchSource
    own: InProcessSource | PushedSource
    feeding: Feeding


@dataclass(frozen=True)
class CpuOrder:
    """Steps to run in this process."""

    steps: StepOrder
    run: Callable[[StepOrder], StepsDone]
    is_done = False

    def finish(self) -> StepsDone:
        """Run the steps."""
        return self.run(self.steps)


@cache
def _thread_pools() -> ThreadpoolController:
    """Find the BLAS libraries of the process; takes a millisecond, so it is done once."""
    return ThreadpoolController()


class CpuProgram:
    """A program of a CPU run.

    While a step runs, BLAS uses the plan's number of threads; then the user's setting is restored.
    """

    device = "cpu:0"
    runs_asynchronously = False

    def __init__(self, executable: Executable, memory: _ProgramMemory, fed: _BatchFeed) -> None:
        plan = self.plan = executable.plan
        self.fed, self.feeding = fed, fed.feeding
        arena, store = memory.arena, memory.store
        threads = threads_of(plan, cpus_of(plan, memory.threads))
        runtime = threads.over(memory.runtime)
        self._blas_threads = threads.blas
        sent = SentWeights(executable, store)
        program = sent.after_updates(executable.update_program(store, runtime))
        numbers = numbers_view(plan, store)
        updates = Updates(plan, program, gate=memory.gate, numbers=numbers)
        weights: Weights = ResidentWeights(updates, sent)
        if not plan.store_in_arena:
            weights = InProcessStreamedWeights(plan, Slots(plan, arena, sent), updates)
        self._results = ResultSlots(plan, zeros(result_slots(plan) * result_slot_bytes(plan)))
        recorder = memory.recorder if plan.run_mode is RunMode.TRAIN else SpanRecorder(None)
        watched = timed(weights, recorder, plan.store_in_arena)
        # otherwise there are no waits to measure
        is_watched = recorder.steps or not plan.store_in_arena
        reached = watched if is_watched else weights
        compute = make_compute(PlacedProgram(executable, arena, store, runtime), reached)
        self._engine = Engine(plan, compute, fed.source, watched, self._results)
        self._weights, self._arena_owner = weights, memory.arena_owner
        self._recorder, self._number = memory.recorder, len(memory.plans)
        memory.plans.append(plan)

    def begin(self, first: int = 0, last: int | None = None, data_order: bytes = b"") -> None:
        """Set the next batch to number `first` of the data set."""
        self.fed.own.begin(first, last)

    def push(self, batch: Batch) -> None:
        """Set the batch of the next step."""
        assert isinstance(self.fed.own, PushedSource), "its batches are pushed"
        self.fed.own.push(batch)

    def run(self, steps: StepOrder) -> StepsDone:
        """Run steps; their updates are complete on return."""
        self._arena_owner.take(self._weights)
        self._recorder.program = self._number
        # BLAS splits its sums by thread: another number of threads would change the bits.
        with _thread_pools().limit(limits=self._blas_threads, user_api="blas"):
            return self._engine.run(steps)

    def order(self, steps: StepOrder) -> CpuOrder:
        """Return an order that runs the steps when it is waited for."""
        return CpuOrder(steps, self.run)

    def result(self, slot: int, step: int) -> StepResult:
        """Return the result of step number `slot` of the last call."""
        return self._results.read(slot, step)

    def losses(self, count: int) -> list[float]:
        """Return the losses of the last call's first `count` steps."""
        return self._results.losses(count)

    def has_lost_peer(self) -> bool:
        """Return False: there are no other processes."""
        return False


class CpuMachine(CpuProgram):
    """Chief, streamer, wafer and MemoryX in one process.

    sram_bytes: memory of the simulated wafer; None for no limit.
    is_pushed: as in `Feed`.
    """

    def __init__(
        self,
        executable: Executable,
        dataset: Dataset,
        settings: RunSettings,
        first: int,
        sram_bytes: int | None = None,
        is_pushed: bool = False,
    ) -> None:
        started = perf_counter()
        plan = executable.plan
        arena = zeros(plan.arena_bytes)
        store = store_of(plan, arena, None if plan.store_in_arena else zeros(plan.store.nbytes))
        self.arena_bytes = plan.arena_bytes
        self.state = state_views(plan, store)
        self.numbers = numbers_view(plan, store)
        self.gradients: Mapping[str, Array] = gradient_views(plan, store)
        recorder, gate = SpanRecorder(settings.trace_steps), UpdateGate(plan)
        runtime = Runtime(settings.seed, LayerMarks(recorder))
        self._memory = _ProgramMemory(arena, store, runtime, recorder, gate, settings.threads)
        self._settings, self._sram_bytes = settings, sram_bytes
        self.plans = self._memory.plans
        feed = Feed(dataset, first=first, is_pushed=is_pushed)
        super().__init__(executable, self._memory, self._fed(plan, feed))
        self.programming_time_s = perf_counter() - started

    def load(self, executable: Executable, feed: Feed | Program) -> CpuProgram:
        """Load another program over the same store."""
        executable = relocate_to_store(self.plan, executable, self._sram_bytes)
        plan, memory = executable.plan, self._memory
        if plan.arena_bytes > len(memory.arena):
            # Earlier programs keep their arena. A store at the front of this one is never touched,
            # so it takes no memory.
            memory.arena = zeros(plan.arena_bytes)
            self.arena_bytes = plan.arena_bytes
        return CpuProgram(executable, memory, self._fed(plan, feed))

    def unload(self, program: Program) -> None:
        """Drop the program; its memory is freed with the last reference to it."""

    def traced(self, asks: bool = True) -> list[tuple[str, Spans]]:
        """Return the spans of this process, without the chief's."""
        return [("this process", self._memory.recorder.spans())]

    def _fed(self, plan: Plan, feed: Feed | Program) -> _BatchFeed:
        if isinstance(feed, CpuProgram):
            of = feed.fed
            return replace(of, source=FirstRows(of.source, plan.inputs, feed.plan.inputs))
        if not isinstance(feed, Feed):
            raise TypeError("a program can only take batches of a program on the same machine")
        if feed.is_pushed:
            pushed = PushedSource(plan.inputs, self._settings)
            return _BatchFeed(pushed, pushed, Feeding())
        source = InProcessSource(feed.dataset, plan.inputs, feed.first, self._settings, feed.last)
        stage = partial(_stage, source)
        return _BatchFeed(source, source, Feeding(stage=stage, replayed=feed.dataset.replayed))

    def initialize(self) -> None:
        """Set all of the state to its initial values."""
        initialize(self.plan, self.state, self._settings.seed, thread_count(), is_fresh=True)

    has_writable_state = True

    def written(self) -> None:
        """Note that the state was written between two orders."""
        self._arena_owner.forget()

    def pause_updates(self) -> UpdatePause:
        """Make updates wait until the old state has been copied."""
        copied = threading.Semaphore(0)
        self._memory.gate.hold(copied.acquire)
        return UpdatePause(copying_order(self.plan), copied.release, lambda: None)

    def close(self, results: Results) -> None:
        """Do nothing: there are no other processes."""


def _stage(source: InProcessSource, _: int, stage: int) -> str | None:
    return source.stage(stage)
