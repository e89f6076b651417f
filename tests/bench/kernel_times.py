"""Profile of a training step: time of each function of a transformer's program.

    $ scripts/bench kernel_times

A row is all calls of a step of functions with one stem, products by their shapes, and their share
of the step.
"""

import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from model_steps import BERT, GPT, WIDE_GPT, Workload, training_of
from result import Result

STEPS, LEAST = 5, 0.01  # steps of a measurement; the least share that has a row
FUNCTION = re.compile(r"(.+)_[0-9a-f]{8}")


class Times:
    """Seconds in the functions of programs, by stem."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def watch(self, namespace: dict[str, Any]) -> dict[str, Any]:
        """The functions of a program, each of which counts the time of its calls."""
        for name, function in namespace.items():
            if (match := FUNCTION.fullmatch(name)) and callable(function):
                namespace[name] = self._bound(match[1], function)
        return namespace

    def _bound(self, stem: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def bind(*arrays: Any) -> Callable[..., None]:
            run, label = function(*arrays), stem
            if (signature := getattr(function, "signature", None)) and stem.endswith("product"):
                label = f"product {signature.a.shape} x {signature.b.shape}"

            def timed(*values: Any) -> None:
                started = perf_counter()
                run(*values)
                self.seconds[label] += perf_counter() - started

            return timed

        return bind


def bench(workload: Workload, threads: int) -> None:
    """Print a row for each stem, the longest first."""
    from csrun.executable import Executable

    times, namespace = Times(), Executable._namespace
    Executable._namespace = lambda self, *a: times.watch(namespace(self, *a))  # type: ignore
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        step = training_of(workload, Path(folder)).ours(threads)
    step()
    times.seconds.clear()
    started = perf_counter()
    for _ in range(STEPS):
        step()
    whole = perf_counter() - started
    for label, seconds in times.seconds.most_common():
        if seconds / whole >= LEAST:
            Result(
                "kernel_times", f"{workload.name}, {threads} threads", label, "ms a step",
                1e3 * seconds / STEPS, "step", seconds / whole, STEPS,
            ).print()  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:]:
        bench((GPT, WIDE_GPT, BERT)[int(sys.argv[1])], len(os.sched_getaffinity(0)))
    else:
        for number in range(3):  # the reference models' modules have the same names
            os.spawnv(os.P_WAIT, sys.executable, [sys.executable, __file__, str(number)])
