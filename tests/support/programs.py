"""Compiled programs driven step by step in a test, without the runtime."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from csrun import nn
from csrun.base.half_formats import HalfFormat
from csrun.base.mode import ExecutionMode, RunMode
from csrun.cirh.ops.loss import IGNORE_INDEX
from csrun.cirh.ops.products import MmOp
from csrun.cirh.ops.shape import TransposeOp
from csrun.compiler import CompileOptions, compile_model
from csrun.data.delivery import Delivery
from csrun.data.input_operators import StageClock
from csrun.executable import (
    Executable,
    LabelRange,
    Plan,
    Runtime,
    StepState,
    state_views,
    wafer_views,
)
from csrun.executable.arrays import zeros
from csrun.nn.tracer import Tracer
from csrun.runtime.step.updates import Updates
from csrun.runtime.store.store_initialization import initialize
from csrun.site import System
from csrun.site import load as load_site

SYSTEM = load_site("local").systems[0]


def system_of(nbytes: int) -> System:
    """System with this much memory, rounded to KiB."""
    rows = nbytes // 1024
    return msgspec.structs.replace(
        SYSTEM, fabric_width=1, fabric_height=rows, usable_cores=rows, sram_kb_per_core=1
    )


def options_of(
    mode: ExecutionMode = ExecutionMode.PIPELINED, run_mode: RunMode = RunMode.TRAIN, **others
) -> CompileOptions:
    """Options of a compile for the shipped CS-2."""
    return CompileOptions(**{"mode": mode, "run_mode": run_mode, "system": SYSTEM, **others})


@dataclass(frozen=True)
class Network:
    """Fully connected network with ReLU, and its training options."""

    sizes: tuple[int, ...] = (12, 7, 9, 5)
    batch: int = 16
    learning_rate: float = 0.05
    momentum: float = 0.9
    precision: str = "float32"
    optimizer: nn.Optimizer | None = None  # SGD as above when there is none
    activation: str = "relu"
    dropout: float = 0.0  # after each hidden layer
    storage: HalfFormat | None = None  # of mixed precision
    loss_factor: float = 1.0

    def trace(self, run_mode: RunMode = RunMode.TRAIN):
        """Module of the network; features are [batch, 2, sizes[0] / 2]."""
        with Tracer(self.precision, self.storage) as tracer:
            shape = (self.batch, 2, self.sizes[0] // 2)
            x = nn.flatten(tracer.input("features", shape, self.precision))
            labels = tracer.input("labels", (self.batch,), "int32")
            for units in self.sizes[1:-1]:
                x = nn.Dense(units, self.activation)(x)
                x = nn.Dropout(self.dropout)(x) if self.dropout else x
            logits = nn.Dense(self.sizes[-1])(x)
            loss = nn.softmax_cross_entropy(logits, labels)
            if self.loss_factor != 1:
                loss = loss * self.loss_factor
            optimizer = self.optimizer or nn.SGD(self.learning_rate, self.momentum)
            train_op = optimizer.minimize(loss)
            outputs = [("logits", logits), ("prediction", nn.argmax(logits)), ("labels", labels)]
            return tracer.finish(run_mode, loss, train_op, outputs)

    def compile(
        self,
        root: Path,
        mode: ExecutionMode,
        group_bytes: int = 1 << 20,
        run_mode: RunMode = RunMode.TRAIN,
        **others,
    ) -> Executable:
        """Compile the network into `root`."""
        options = options_of(mode, run_mode, group_bytes=group_bytes, **others)
        return compile_model(self.trace(run_mode), root, options).executable

    def batches(self, count: int, rows: int | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
        """Seeded batches with `rows` valid rows."""
        random = np.random.default_rng(11)
        found = []
        for _ in range(count):
            x = random.standard_normal((self.batch, 2, self.sizes[0] // 2))
            labels = random.integers(0, self.sizes[-1], self.batch).astype(np.int32)
            if rows is not None:
                x[rows:], labels[rows:] = 0, IGNORE_INDEX
            found.append((x.astype(self.precision), labels))
        return found

    def parameters(self) -> dict[str, np.ndarray]:
        """Seeded first values by name, with nonzero biases."""
        random = np.random.default_rng(3)
        found = {}
        for index, (fan_in, units) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            layer = f"dense_{index}" if index else "dense"
            kernel = random.standard_normal((fan_in, units)) / np.sqrt(fan_in)
            found[f"{layer}/kernel"] = kernel.astype(self.precision)
            found[f"{layer}/bias"] = (0.1 * random.standard_normal(units)).astype(self.precision)
        return found


@dataclass(frozen=True)
class TiedNetwork(Network):
    """Network x E, dense layers of one size, then h E^T: the tied E is used first and last.

    sizes: V, D, …, D, V
    """

    def trace(self, run_mode: RunMode = RunMode.TRAIN):
        """The network's module."""
        with Tracer(self.precision) as tracer:
            shape = (self.batch, 2, self.sizes[0] // 2)
            x = nn.flatten(tracer.input("features", shape, self.precision))
            labels = tracer.input("labels", (self.batch,), "int32")
            with nn.scope("table"):
                kind = self.sizes[:2]
                table = tracer.parameter("weight", kind, nn.initializers.glorot_uniform(kind))
            with nn.scope("embedding"):
                x = tracer.emit(MmOp, x, table)
            for index, units in enumerate(self.sizes[2:-1]):
                with nn.scope("h"), nn.scope(index):
                    x = nn.Dense(units, self.activation)(x)
                    x = nn.Dropout(self.dropout)(x) if self.dropout else x
            with nn.scope("head"):
                logits = tracer.emit(MmOp, x, tracer.emit(TransposeOp, table))
            loss = nn.softmax_cross_entropy(logits, labels)
            optimizer = self.optimizer or nn.SGD(self.learning_rate, self.momentum)
            return tracer.finish(run_mode, loss, optimizer.minimize(loss), [("logits", logits)])

    def parameters(self) -> dict[str, np.ndarray]:
        """Seeded first values by name."""
        random = np.random.default_rng(3)
        shapes = {"table/weight": self.sizes[:2]}
        for index, units in enumerate(self.sizes[2:-1]):
            shapes[f"h/{index}/dense/kernel"] = (self.sizes[1], units)
            shapes[f"h/{index}/dense/bias"] = (units,)
        return {
            name: (random.standard_normal(shape) / 4).astype(self.precision)
            for name, shape in shapes.items()
        }


class ArrayData:
    """Finite data set of these batches, each a tuple of arrays."""

    replayed = False

    def __init__(self, batches: Sequence[tuple[np.ndarray, ...]]) -> None:
        self.all = batches
        self.clock = StageClock()

    def names(self, arrays: int) -> list[str]:
        return ["features", "labels"][:arrays]

    def deliveries(self, start: int, stride: int) -> Iterator[Delivery]:
        """Yield global batches start, start + stride, …"""
        return (Delivery(batch, list) for batch in self.all[start::stride])


def step_of(plan: Plan, batch: Sequence[np.ndarray], rows: int, index: int = 0) -> StepState:
    """Step on a batch with this many valid rows and counted labels."""
    counts = [
        np.count_nonzero(_cut(array[:rows], one) != one.ignore_index)
        for array, spec in zip(batch, plan.inputs, strict=True)
        for one in spec.labels
    ]
    return StepState(index, 0, rows, tuple(map(int, counts)))


def _cut(array: np.ndarray, labels: LabelRange) -> np.ndarray:
    for cut in labels.cuts:
        at = range(cut.start, cut.stop, cut.step) if cut.stop is not None else cut.start
        array = array.take(at, axis=cut.dim)
    return array


class Machine:
    """Arena and store of an Executable; slots are poisoned before weights are copied to them."""

    def __init__(
        self, executable: Executable, parameters: dict[str, np.ndarray], threads: int = 1
    ) -> None:
        self.plan = plan = executable.plan
        self.arena = zeros(plan.arena_bytes)
        inside = plan.store_in_arena
        self.store = self.arena[: plan.store.nbytes] if inside else zeros(plan.store.nbytes)
        self.state = state_views(plan, self.store)
        initialize(plan, self.state, seed=0)
        for name, value in parameters.items():
            self.state[name][...] = value
        self.views = wafer_views(plan, self.arena, self.store)
        self._wafer = executable.wafer_program(
            self.arena, self.store, Runtime(seed=0, threads=threads)
        )
        if plan.store.gradients_offset is not None:
            program = executable.update_program(self.store, Runtime(seed=0))
            self._updates = Updates(plan, program)
        self.step_count = 0

    def evaluate(self, batch: Sequence[np.ndarray]) -> float:
        """Run all visits; return the mean loss over the valid rows."""
        return self._run(batch, lambda group: None)

    def _run(self, batch: Sequence[np.ndarray], complete: Callable[[int], None]) -> float:
        step = self._step(batch)
        given = batch if isinstance(batch, tuple) else tuple(batch)
        for visit, function in zip(self.plan.visits, self._wafer.visits, strict=True):
            self._load(visit.groups)
            function(given, step)
            for group in visit.completes:
                complete(group)
        count = step.rows if self.plan.loss_count is None else step.counts[self.plan.loss_count]
        return float(self.views[self.plan.loss_buffer][0]) / count

    def predict(self, batch: Sequence[np.ndarray]) -> None:
        """Run all visits of a program without a loss, on a whole batch."""
        with np.errstate(all="ignore"):  # as in an engine
            for function in self._wafer.visits:
                function(tuple(batch), StepState(rows=len(batch[0])))

    def train(self, batch: Sequence[np.ndarray]) -> tuple[float, dict[str, np.ndarray]]:
        """Train one step; return the mean loss, and a copy of each gradient."""
        gradients: dict[str, np.ndarray] = {}
        step = self._step(batch)

        def complete(group: int) -> None:
            layers = self.plan.groups[group].layers
            for name in (p.name for p in self.plan.parameters if p.layer in layers):
                gradients[name] = self.views[f"gradient:{name}"].copy()
            self._updates.deliver(group, step)

        loss = self._run(batch, complete)
        self.step_count += 1
        known = [p.name for p in self.plan.parameters if p.name in gradients]
        return loss, {name: gradients[name] for name in known}  # a state that is read has none

    def output(self, name: str) -> np.ndarray:
        """Buffer of an output."""
        (buffer,) = [o.buffer for o in self.plan.outputs if o.name == name]
        return self.views[buffer]

    def _step(self, batch: Sequence[np.ndarray]) -> StepState:
        labels = batch[1] if len(batch) > 1 else np.zeros(len(batch[0]))
        counts = (labels != IGNORE_INDEX).reshape(len(labels), -1).any(axis=1)
        return step_of(self.plan, batch, int(counts.sum()), self.step_count)

    def _load(self, groups: Sequence[int]) -> None:
        """Copy a visit's weights into their slots, as the wafer does in weight streaming."""
        if self.plan.store_in_arena:
            return
        for g in self.plan.groups:
            self.arena[g.slot_offset_bytes : g.slot_offset_bytes + g.nbytes] = 0xFF  # NaN
        base = self.plan.store.weights_offset
        for group in (self.plan.groups[index] for index in groups):
            source = self.store[base + group.offset_bytes :][: group.nbytes]
            slot = self.arena[group.slot_offset_bytes :][: group.nbytes]
            slot[...] = source
