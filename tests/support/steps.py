"""One step of a small model, traced by a test, compiled, and run as in the runtime."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from support.programs import options_of, step_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import compile_model
from csrun.executable import Executable, Plan, Runtime, StepState, state_views, wafer_views
from csrun.nn.tracer import Tracer
from csrun.runtime.step.batch_maker import fill_up
from csrun.runtime.step.engine import make_compute
from csrun.runtime.step.placed_program import PlacedProgram
from csrun.runtime.step.results import ResultSlots, StepResult, result_slot_bytes
from csrun.runtime.step.updates import Updates
from csrun.runtime.store.store_initialization import initialize

Arrays = Sequence[np.ndarray]
Model = Callable[..., tuple[nn.Tensor, dict[str, nn.Tensor]]]  # (features, labels): loss, outputs


@dataclass(frozen=True)
class Case:
    """Model and the valid rows of its batch, which are padded to `size`."""

    model: Model
    batch: Arrays
    minibatches: int = 1
    size: int = 0
    mode: ExecutionMode = ExecutionMode.PIPELINED
    run_mode: RunMode = RunMode.TRAIN
    precision: str = "float64"
    optimizer: nn.Optimizer = field(default_factory=lambda: nn.SGD(0.1))
    micro_batches: int = 1

    def trace(self):
        with Tracer(self.precision) as tracer:
            tensors = []
            for name, array in zip(("features", "labels"), self.filled_up(), strict=False):
                parts = self.micro_batches * self.minibatches
                shape = (len(array) // parts, *array.shape[1:])
                dtype = self.precision if array.dtype.kind == "f" else array.dtype.name
                tensors.append(tracer.input(name, shape, dtype))
            loss, outputs = self.model(*tensors)
            train_op = self.optimizer.minimize(loss)
            return tracer.finish(self.run_mode, loss, train_op, list(outputs.items()))

    def filled_up(self) -> tuple[np.ndarray, ...]:
        """The batch, padded."""
        return filled_up(self.batch, max(self.size, len(self.batch[0])))

    def compile(self, root: Path, **options) -> Executable:
        """Compile into `root`."""
        count = {
            "minibatches_in_flight": self.minibatches,
            "micro_batches": self.micro_batches,
        }
        wanted = options_of(self.mode, self.run_mode, group_bytes=300, **count, **options)
        return compile_model(self.trace(), root, wanted).executable


def filled_up(batch: Arrays, size: int) -> tuple[np.ndarray, ...]:
    """Pad a batch to this many rows, as the runtime does."""
    rows = len(batch[0])
    arrays = tuple(np.empty((size, *a.shape[1:]), a.dtype) for a in batch)
    for array, valid in zip(arrays, batch, strict=True):
        array[:rows] = valid
    fill_up(arrays, rows)
    return arrays


def parameters_of(plan: Plan) -> dict[str, np.ndarray]:
    """Seeded weights by name."""
    random = np.random.default_rng(4)
    return {p.name: (random.standard_normal(p.shape) / 2).astype(p.dtype) for p in plan.parameters}


@dataclass(frozen=True)
class Stepped:
    """Result of a step, and gradients of parameters by name."""

    result: StepResult
    gradients: dict[str, np.ndarray]


def one_step(case: Case, root: Path, index: int = 3) -> Stepped:
    """Run a step from `parameters_of` the plan, which must not change."""
    return Training(case.compile(root), is_updated=False).step(case.batch, index)


class Training:
    """Steps from `parameters_of` the plan, in memory that is not zeroed.

    state: weights and optimizer state by name
    """

    def __init__(self, executable: Executable, is_updated: bool = True, threads: int = 1) -> None:
        self.plan = plan = executable.plan
        arena = np.full(plan.arena_bytes, 0xFF, np.uint8)
        inside = plan.store_in_arena
        store = arena[: plan.store.nbytes] if inside else np.empty(plan.store.nbytes, "u1")
        self.state = state_views(plan, store)
        initialize(plan, self.state, seed=0)
        for name, value in parameters_of(plan).items():
            self.state[name][...] = value
        runtime = Runtime(5, threads=threads)
        program = executable.update_program(store, runtime) if is_updated else None
        self._weights = Copied(plan, arena, store, program and Updates(plan, program))
        self._compute = make_compute(
            PlacedProgram(executable, arena, store, runtime), self._weights
        )
        self._slots = ResultSlots(plan, np.zeros(result_slot_bytes(plan), np.uint8))

    def step(self, batch: Arrays, index: int) -> Stepped:
        """Run a step on a batch, which is padded."""
        rows, arrays = len(batch[0]), filled_up(batch, self.plan.batch_size)
        step = step_of(self.plan, arrays, rows, index)
        with np.errstate(all="ignore"):  # as the engine does
            loss = self._compute.run(arrays, step)
        count = rows if self.plan.loss_count is None else step.counts[self.plan.loss_count]
        self._slots.record(0, loss, count, rows)
        self._slots.record_outputs(0, self._compute.outputs)
        return Stepped(self._slots.read(0, index), dict(self._weights.gradients))


class Copied:
    """Weights that change only by updates, and are copied to slots in weight streaming.

    gradients: delivered ones, by parameter
    """

    def __init__(
        self, plan: Plan, arena: np.ndarray, store: np.ndarray, updates: Updates | None = None
    ) -> None:
        self._plan, self._arena, self._store, self._updates = plan, arena, store, updates
        self._views = wafer_views(plan, arena, store)
        self.gradients: dict[str, np.ndarray] = {}

    def enter(self, visit: int) -> None:
        if self._plan.store_in_arena:
            return
        base = self._plan.store.weights_offset
        for found in (self._plan.groups[group] for group in self._plan.order[visit].groups):
            source = self._store[base + found.offset_bytes :][: found.nbytes]
            slot = self._arena[found.slot_offset_bytes :][: found.nbytes]
            slot[...] = source

    def deliver(self, group: int, step: StepState) -> None:
        layers = self._plan.groups[group].layers
        for name in (p.name for p in self._plan.parameters if p.layer in layers):
            self.gradients[name] = self._views[f"gradient:{name}"].copy()
        if self._updates is not None:
            self._updates.deliver(group, step)
