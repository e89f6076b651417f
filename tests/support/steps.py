"""One step of a small model, traced by a test, compiled and run as the runtime does it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from support.programs import options_of, step_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import compile_model
from csrun.executable import Executable, Plan, Runtime, Step, state_views, wafer_views
from csrun.nn.tracer import Tracer
from csrun.runtime.step.batch_maker import fill_up
from csrun.runtime.step.engine import make_compute
from csrun.runtime.step.results import ResultSlots, StepResult, result_slot_bytes

Arrays = Sequence[np.ndarray]
Model = Callable[..., tuple[nn.Tensor, dict[str, nn.Tensor]]]  # (features, labels): loss, outputs


@dataclass(frozen=True)
class Case:
    """A model and the valid rows of its batch, which are filled up to `size` if that is larger."""

    model: Model
    batch: Arrays
    minibatches: int = 1
    size: int = 0
    mode: ExecutionMode = ExecutionMode.PIPELINED
    run_mode: RunMode = RunMode.TRAIN
    precision: str = "float64"

    def trace(self):
        """Its module; the loss is minimized by SGD."""
        with Tracer(self.precision) as tracer:
            tensors = []
            for name, array in zip(("features", "labels"), self.filled_up(), strict=False):
                shape = (len(array) // self.minibatches, *array.shape[1:])
                dtype = self.precision if array.dtype.kind == "f" else array.dtype.name
                tensors.append(tracer.input(name, shape, dtype))
            loss, outputs = self.model(*tensors)
            train_op = nn.SGD(0.1).minimize(loss)
            return tracer.finish(self.run_mode, loss, train_op, list(outputs.items()))

    def filled_up(self) -> tuple[np.ndarray, ...]:
        """The batch as the runtime hands it over."""
        rows = len(self.batch[0])
        size = max(self.size, rows)
        arrays = tuple(np.empty((size, *a.shape[1:]), a.dtype) for a in self.batch)
        for array, valid in zip(arrays, self.batch, strict=True):
            array[:rows] = valid
        fill_up(arrays, rows)
        return arrays

    def compile(self, root: Path, **options) -> Executable:
        """It, compiled into `root`."""
        count = {"minibatches_in_flight": self.minibatches}
        wanted = options_of(self.mode, self.run_mode, group_bytes=300, **count, **options)
        return compile_model(self.trace(), root, wanted).executable


def parameters_of(plan: Plan) -> dict[str, np.ndarray]:
    """Seeded weights by name."""
    random = np.random.default_rng(4)
    return {p.name: (random.standard_normal(p.shape) / 2).astype(p.dtype) for p in plan.parameters}


@dataclass(frozen=True)
class Stepped:
    """What one step gave: its result, and each parameter's gradient by name."""

    result: StepResult
    gradients: dict[str, np.ndarray]


def one_step(case: Case, root: Path, index: int = 3) -> Stepped:
    """A step from `parameters_of` the plan, in memory of which nothing is zero at first."""
    plan = (executable := case.compile(root)).plan
    rows = len(case.batch[0])
    arena = np.full(plan.arena_bytes, 0xFF, np.uint8)
    store = arena[: plan.store.nbytes] if plan.store_in_arena else np.empty(plan.store.nbytes, "u1")
    for name, array in state_views(plan, store).items():
        array[...] = parameters_of(plan).get(name, 0)
    compute = make_compute(executable, arena, store, Runtime(5), Copied(plan, arena, store))
    batch = case.filled_up()
    step = step_of(plan, batch, rows, index)
    with np.errstate(all="ignore"):  # as the engine does
        loss = compute.run(batch, step)
    slots = ResultSlots(plan, np.zeros(result_slot_bytes(plan), np.uint8))
    count = rows if plan.loss_count is None else step.counts[plan.loss_count]
    slots.record(0, loss, count, rows)
    slots.record_outputs(0, compute.outputs)
    views = wafer_views(plan, arena, store)
    trained = plan.parameters if case.run_mode is RunMode.TRAIN else ()
    gradients = {p.name: views[f"gradient/{p.name}"].copy() for p in trained}
    return Stepped(slots.read(0, index), gradients)


class Copied:
    """Weights that stay as they are; in weight streaming copied to their slots."""

    def __init__(self, plan: Plan, arena: np.ndarray, store: np.ndarray) -> None:
        self._plan, self._arena, self._store = plan, arena, store

    def enter(self, visit: int) -> None:
        if self._plan.store_in_arena:
            return
        base = self._plan.store.weights_offset
        for found in (self._plan.groups[group] for group in self._plan.visits[visit].groups):
            source = self._store[base + found.offset_bytes :][: found.nbytes]
            slot = self._arena[found.slot_offset_bytes :][: found.nbytes]
            slot[...] = source

    def deliver(self, group: int, step: Step) -> None:
        pass
