"""A training step with 16-bit storage beside one in float32, of machine code and NumPy kernels.

The compiled programs run in this process on one batch, without a runtime around them, on all CPUs.
"""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

from model_steps import Workload, gpt, training_of
from result import Result, interleaved

GPT = gpt("GPT-2's width, d 768, 2 layers, T 256, batch 2, bytes", 2, 256, 768, 2, 12)
WHOLE, ROUNDS = "float32", 5
AT_LEAST = 0.9  # of float32's rate
FORMS = {"machine code": False, "NumPy kernels": True}
PROMISED_BY_NUMPY = ("bfloat16",)


def bench_steps(workload: Workload) -> None:
    """Print the rate of each 16-bit format's steps, beside float32's in the same form."""
    from csrun.base.half_formats import BFLOAT16, FLOAT16, cbfloat16

    formats = {WHOLE: None, **{each.name: each for each in (FLOAT16, BFLOAT16, cbfloat16())}}
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        trainings = {
            name: training_of(workload, Path(folder, name), half) for name, half in formats.items()
        }
        for form, by_numpy in FORMS.items():
            steps = {
                name: training.ours(os.cpu_count() or 1, by_numpy)
                for name, training in trainings.items()
            }
            for step in steps.values():
                step()  # the first one touches its memory
            rates = interleaved(
                {name: partial(_rate, step) for name, step in steps.items()}, ROUNDS
            )
            for name in formats:
                is_promised = not by_numpy or name in PROMISED_BY_NUMPY
                Result(
                    "half_steps", workload.name, f"{name}, {form}", "steps/s", rates[name],
                    f"float32, {form}", rates[name] / rates[WHOLE], ROUNDS,
                    at_least=AT_LEAST if is_promised and name != WHOLE else None,
                ).print()  # fmt: skip


def _rate(step: Callable[[], None]) -> float:
    began = perf_counter()
    step()
    return 1 / (perf_counter() - began)


if __name__ == "__main__":
    bench_steps(GPT)
