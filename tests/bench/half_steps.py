"""Training steps with 16-bit storage, compared with float32, in machine code and NumPy.

The compiled programs run in this process on one batch, without a runtime around them, on all CPUs.
Where the CPU has instructions for bfloat16, products use them, compared with PyTorch's under
autocast.
"""

import os
import sys
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
AUTOCAST = "PyTorch, autocast to bfloat16"
AT_LEAST_IN_HARDWARE = {WHOLE: 1.3, AUTOCAST: 1.0}


def bench_steps(workload: Workload) -> None:
    """Print the rate of each 16-bit format's steps, compared with float32's in the same form."""
    from csrun.base.half_formats import BFLOAT16, FLOAT16, cbfloat16

    formats = {WHOLE: None, **{each.name: each for each in (FLOAT16, BFLOAT16, cbfloat16())}}
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        trainings = {
            name: training_of(workload, Path(folder, name), half) for name, half in formats.items()
        }
        for form, by_numpy in FORMS.items():
            rates = _rates(
                {
                    name: training.ours(os.cpu_count() or 1, by_numpy)
                    for name, training in trainings.items()
                }
            )
            for name in formats:
                is_promised = not by_numpy or name in PROMISED_BY_NUMPY
                Result(
                    "half_steps", workload.name, f"{name}, {form}", "steps/s", rates[name],
                    f"float32, {form}", rates[name] / rates[WHOLE], ROUNDS,
                    at_least=AT_LEAST if is_promised and name != WHOLE else None,
                ).print()  # fmt: skip


def bench_hardware(workload: Workload) -> None:
    """Print the rate with bfloat16 products in hardware, compared with float32 and PyTorch."""
    import torch

    from csrun.base.half_formats import BFLOAT16
    from csrun.executable import bfloat16, machine_code

    instructions = bfloat16.fastest() if machine_code.is_supported() else None
    if instructions is None:
        sys.stderr.write("half_steps: no rows of bfloat16 in hardware: this CPU has none\n")
        return
    in_hardware = f"bfloat16, {bfloat16.TITLES[instructions]}"
    threads = os.cpu_count() or 1
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        whole = training_of(workload, Path(folder, WHOLE))
        halves = training_of(workload, Path(folder, "halves"), BFLOAT16, instructions)
        steps = {
            WHOLE: whole.ours(threads),
            in_hardware: halves.ours(threads),
            AUTOCAST: whole.theirs(autocast=True),
            "PyTorch, float32": whole.theirs(),
        }
        rates = _rates(steps)
        for name, rate in rates.items():
            if name != in_hardware:
                Result(
                    "half_steps", workload.name, in_hardware, "steps/s", rates[in_hardware], name,
                    rates[in_hardware] / rate, ROUNDS, at_least=AT_LEAST_IN_HARDWARE.get(name),
                ).print()  # fmt: skip


def _rates(steps: dict[str, Callable[[], None]]) -> dict[str, float]:
    for step in steps.values():
        step()  # the first one touches its memory
    return interleaved({name: partial(_rate, step) for name, step in steps.items()}, ROUNDS)


def _rate(step: Callable[[], None]) -> float:
    began = perf_counter()
    step()
    return 1 / (perf_counter() - began)


if __name__ == "__main__":
    bench_steps(GPT)
    bench_hardware(GPT)
