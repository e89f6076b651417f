"""Rate of this machine's executor with a batch ready."""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import msgspec

from csrun.advice.numbers import spread
from csrun.base.run_config import RunSettings
from csrun.data import Dataset
from csrun.executable import Executable
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.store.store_initialization import initialize
from csrun.runtime.wire.messages import StepOrder

WAFER_S = 1.0
ORDER_STEPS = 1  # timeout of an order: a large model's step may take long


@dataclass(frozen=True)
class WaferRate:
    """Measured rate. spread: of samples_per_s. cpu_s: CPU time of a step, of all its threads."""

    samples_per_s: float
    spread: float
    cpu_s: float


def wafer_rate(executable: Executable, dataset: Dataset, settings: RunSettings) -> WaferRate:
    """Measure this machine's executor with a batch ready, updates of the weights included.

    Value ranges go to a temporary directory, so that those of a training in the folder stay.
    Recording is off.
    """
    plan = msgspec.structs.replace(executable.plan, recording=None)
    with TemporaryDirectory(prefix="csrun-ranges-") as ranges:
        measured = replace(executable, plan=plan, ranges=Path(ranges))
        return _measured(measured, dataset, settings)


def _measured(executable: Executable, dataset: Dataset, settings: RunSettings) -> WaferRate:
    machine = CpuMachine(executable, dataset.repeat_batch(next(dataset.batches())), settings, 0)
    initialize(machine.plan, machine.state, settings.seed)
    machine.run(StepOrder(0, 1))
    step, samples, took_s, started = 1, 0, list[float](), perf_counter()
    cpu_s = 0.0
    while perf_counter() - started < WAFER_S:
        began_s = process_time()
        done = machine.run(StepOrder(step, ORDER_STEPS))
        cpu_s += process_time() - began_s
        step, samples = step + done.done, samples + done.samples
        took_s.append(done.seconds - sum(use.wait_s for use in done.input))
        if done.bad_loss is not None:  # repeating one batch is not a training
            initialize(machine.plan, machine.state, settings.seed)
    rate = samples / sum(took_s)
    deviation = rate * spread(took_s) * len(took_s) / sum(took_s)
    return WaferRate(rate, deviation, cpu_s / (step - 1))
