"""Generated kernels: an activation and a normalisation that no rule knows, fused and not.

Both sides are the compiler's own text of the same operators, over arrays far larger than the cache
of a core: one loop over tiles, and a kernel an operator.
"""

import re
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from result import Result, interleaved
from threadpoolctl import threadpool_limits

import csrun.executable
from csrun import nn
from csrun.base.mode import RunMode
from csrun.compiler.graph.array import Array
from csrun.compiler.kernels import Phase
from csrun.compiler.lair import Generated
from csrun.compiler.matching import match_kernels
from csrun.compiler.passes import run_passes
from csrun.nn.tracer import Tracer

ROWS, COLUMNS = 16384, 512  # 32 MiB an array
ROUNDS, CALLS = 7, 3
WANTED = 1.5  # promised
BASELINE = "a kernel an operator"


def kernels(phase: Phase, most: int | None) -> list[Generated]:
    """The generated kernels of x sigmoid(1.702 x) over its row's mean, of `most` operators each."""
    with Tracer("float32") as tracer:
        features = tracer.input("features", (ROWS, 4), "float32")
        labels = tracer.input("labels", (ROWS,), "int32")
        x = nn.Dense(COLUMNS)(features)
        y = x * nn.sigmoid(1.702 * x)
        z = y / nn.mean(y, axis=-1, keepdims=True)
        loss = nn.softmax_cross_entropy(nn.Dense(4)(z), labels)
        module = tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [])
    run_passes(module)
    found = match_kernels(module, most).kernels
    return [k for k in found if isinstance(k, Generated) and k.phase is phase]


def program(chosen: list[Generated]) -> Callable[[], None]:
    """The kernels' text as a function over arrays of random numbers."""
    arrays: dict[str, Any] = {}
    random = np.random.default_rng(1)

    def name(array: Array) -> str:
        variable = re.sub(r"\W", "_", array.name)
        if variable not in arrays:
            arrays[variable] = random.uniform(0.5, 1.5, array.shape).astype(array.dtype)
        return variable

    lines = [line for k in chosen for line in k.emit(name)]
    before = [line for k in chosen for line in k.prepare(name)]
    body = "\n    ".join(lines)
    scope = {**vars(np), **vars(csrun.executable), "np": np, "add_reduce": np.add.reduce, **arrays}
    exec("\n".join([*before, "def run():", f"    {body}"]), scope)
    return scope["run"]


def calls_per_second(run: Callable[[], None]) -> float:
    """Of some calls, after the caches are as they will be."""
    started = perf_counter()
    for _ in range(CALLS):
        run()
    return CALLS / (perf_counter() - started)


def bench(name: str, phases: tuple[Phase, ...], wanted: float | None) -> None:
    """Measure both sides in turn and print their medians."""
    sides = {
        side: partial(calls_per_second, program([k for p in phases for k in kernels(p, most)]))
        for side, most in (("one kernel a phase", None), (BASELINE, 1))
    }
    with threadpool_limits(1, user_api="blas"):  # as in an Executable
        medians = interleaved(sides, ROUNDS)
    for side, value in medians.items():
        Result(
            "generated", f"x sigmoid(1.702 x) over its mean, {name}", side, "calls/s", value,
            BASELINE, value / medians[BASELINE], ROUNDS, wanted if side != BASELINE else None,
        ).print()  # fmt: skip


if __name__ == "__main__":
    bench("forward", (Phase.FORWARD,), None)
    bench("backward", (Phase.BACKWARD,), None)
    bench("both", (Phase.FORWARD, Phase.BACKWARD), WANTED)
