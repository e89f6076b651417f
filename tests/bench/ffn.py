"""A compiled feed-forward block, parts of which run by themselves: lines of its program."""

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from csrun import nn
from csrun.base.mode import RunMode
from csrun.compiler import compile_model
from csrun.executable import Executable, Runtime, StepState, flat_views
from csrun.executable.arrays import zeros
from csrun.nn.tracer import Tracer
from csrun.runtime.step.update_threads import UpdateThreads

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.programs import options_of

Call = Callable[[], Any]
KERNEL = re.compile(r"# (\S+): (.+)")  # layer and kind stand above a kernel's lines
FUNCTION, LINE = re.compile(r" {4}def "), " " * 8
PRODUCT = "product"
FACTOR = 4  # of the inner width


@dataclass(frozen=True)
class FeedForward:
    """Dense, gelu by tanh, Dense, in a network that AdamW trains: rows [rows, size].

    kernels: form of the kernels
    """

    rows: int
    size: int
    kernels: str = "numpy"

    @property
    def shapes(self) -> str:
        """As a row of results names it."""
        return f"[{self.rows}, {self.size}] by {FACTOR * self.size}"

    @property
    def flops(self) -> int:
        """Of its six products, forward and backward."""
        return 6 * 2 * self.rows * self.size * FACTOR * self.size

    @property
    def weights(self) -> int:
        """Of the network; but for one part in a hundred they are its two kernels'."""
        return sum(int(np.prod(p.shape)) for p in self._executable.plan.parameters)

    def products(self) -> Call:
        """The six products."""
        return self._call(lambda layer, kind: layer in ("up", "down") and kind == PRODUCT)

    def activation(self, threads: int = 1) -> Call:
        """Bias and gelu of the first Dense, forward and backward."""
        return self._call(lambda layer, kind: layer == "up" and kind != PRODUCT, threads)

    def update(self, threads: int = 1) -> Call:
        """AdamW's step, of all weights, as MemoryX makes it with this many threads."""
        plan = self._executable.plan
        store = zeros(plan.store.nbytes)
        for name, region in flat_views(plan, store).items():
            if name.startswith(("weights", "gradients")):
                region[:] = np.random.default_rng(1).standard_normal(region.size)
        program = self._executable.update_program(store, Runtime(seed=0))
        groups = UpdateThreads(threads).over(program).update
        step = StepState()

        def run() -> None:
            for group in groups:
                group(step)

        return run

    def _call(self, keep: Callable[[str, str], bool], threads: int = 1) -> Call:
        """The lines of kernels that are to be kept, by layer and kind, over random numbers."""
        lines = "\n".join(_kept(self._executable.program, keep))
        plan = self._executable.plan
        arena = zeros(plan.arena_bytes)
        numbers = arena[: len(arena) // 4 * 4].view("f")
        numbers[:] = np.random.default_rng(1).standard_normal(numbers.size)
        program, runtime = replace(self._executable, program=lines), Runtime(0, threads=threads)
        visits = program.wafer_program(arena, arena[: plan.store.nbytes], runtime).visits
        step = StepState()

        def run() -> None:
            for visit in visits:
                visit((), step)

        return run

    @cached_property
    def _executable(self) -> Executable:
        with Tracer("float32") as tracer:
            features = tracer.input("features", (self.rows, 8), "float32")
            labels = tracer.input("labels", (self.rows,), "int32")
            x = nn.Dense(self.size, name="before")(features)
            h = nn.Dense(FACTOR * self.size, "gelu_tanh", name="up")(x)
            logits = nn.Dense(8, name="after")(nn.Dense(self.size, name="down")(h))
            loss = nn.softmax_cross_entropy(logits, labels)
            train_op = nn.AdamW(1e-3, weight_decay=0.01).minimize(loss)
            module = tracer.finish(RunMode.TRAIN, loss, train_op, [])
        with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
            return compile_model(module, Path(folder), options_of(kernels=self.kernels)).executable


def _kept(program: str, keep: Callable[[str, str], bool]) -> Iterator[str]:
    """The program with those lines of its visits, and with all functions of kernels."""
    layer, kind, is_of_visits = "", "", False
    for line in program.splitlines():
        is_of_visits |= line.startswith("def bind_")
        if is_of_visits and line.startswith(LINE):
            if kernel := KERNEL.match(line.strip()):
                layer, kind = kernel[1], kernel[2]
            if not keep(layer, kind):
                continue
        yield line
        if is_of_visits and FUNCTION.match(line):
            layer = kind = ""
            yield LINE + "pass"
