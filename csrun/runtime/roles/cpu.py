"""The CPU run: every role in this process, the same Executable, the same bits."""

from time import perf_counter

import numpy as np
from threadpoolctl import threadpool_limits

from csrun.data import Dataset
from csrun.executable import Executable, Runtime, state_views
from csrun.executable.bind import store_of
from csrun.runtime.input_log import Feeding
from csrun.runtime.step.engine import Engine, make_compute
from csrun.runtime.step.results import ResultSlots, StepResult, result_slot_bytes, result_slots
from csrun.runtime.step.source import InProcessSource
from csrun.runtime.step.weights import (
    InProcessStreamedWeights,
    ResidentWeights,
    Slots,
    Updates,
    Weights,
)
from csrun.runtime.wire.messages import Results, RunSettings, StepsDone


class CpuMachine:
    """Chief, streamer, wafer and MemoryX in one process and one thread.

    BLAS threads are limited to the plan's while it runs a step, and the user's setting comes back.
    """

    device = "cpu:0"

    def __init__(
        self,
        executable: Executable,
        dataset: Dataset,
        settings: RunSettings,
        first: int,
    ) -> None:
        started = perf_counter()
        plan = self.plan = executable.plan
        arena = np.zeros(plan.arena_bytes, np.uint8)
        store = store_of(
            plan, arena, None if plan.store_in_arena else np.zeros(plan.store.nbytes, np.uint8)
        )
        self.state = state_views(plan, store)
        runtime = Runtime(settings.seed)
        updates = Updates(plan, executable.update_program(store, runtime))
        weights: Weights = ResidentWeights(updates)
        if not plan.store_in_arena:
            weights = InProcessStreamedWeights(plan, Slots(plan, arena, store), updates)
        self._results = ResultSlots(
            plan, np.zeros(result_slots(plan) * result_slot_bytes(plan), np.uint8)
        )
        source = InProcessSource(dataset, plan.inputs, first, settings)
        self.feeding = Feeding(
            stage=lambda _, stage: source.stage(stage), replayed=dataset.replayed
        )
        self._engine = Engine(
            plan,
            make_compute(executable, arena, store, runtime, weights),
            source,
            weights,
            self._results,
        )
        self.programming_time_s = perf_counter() - started

    def run(self, first: int, count: int) -> StepsDone:
        """Run up to `count` steps from global step `first`."""
        with threadpool_limits(self.plan.blas_threads, user_api="blas"):
            return self._engine.run(first, count)

    def result(self, slot: int, step: int) -> StepResult:
        """The result of the last call's step number `slot`."""
        return self._results.read(slot, step)

    def has_lost_peer(self) -> bool:
        """Nothing runs elsewhere."""
        return False

    def close(self, results: Results) -> None:
        """Nothing runs elsewhere."""
