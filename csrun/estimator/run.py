"""Run: one call of the estimator, as seen by its chief."""

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from threadpoolctl import threadpool_info

from csrun.base.precision_names import MIXED
from csrun.base.run_config import CSRunConfig, RunSettings
from csrun.base.version import VERSION
from csrun.context import TaskContext, run_command_of_process
from csrun.data import Dataset
from csrun.estimator.input_report import InputReports
from csrun.estimator.model_trace import Trace
from csrun.executable import Plan
from csrun.executable.threads import threads_of
from csrun.records import model_dir
from csrun.records.checkpoints import OPTIMIZER_STATE
from csrun.runtime.cpus import cpus_of
from csrun.runtime.wire.rendezvous import RunFolder


@dataclass(frozen=True)
class EstimatorRun:
    """Inputs of a run; each mode is a function of them.

    trace: returns the model for a batch of a data set.
    context, folder: None without a launcher.
    reports: Input Function Reports of the estimator.
    dataset: result of input_fn.
    make: calls input_fn again.
    others: further data sets, for programs loaded later.
    data: index of `dataset` among all data sets, whose order is the same in all tasks.
    is_pushed: the chief makes the first program's batches itself.
    batch_size: of a run that may begin with a smaller batch, else None.
    """

    trace: Trace
    model_dir: Path
    config: CSRunConfig
    params: Any
    context: TaskContext | None
    folder: RunFolder | None
    reports: InputReports
    dataset: Dataset
    make: Callable[[], Dataset]
    others: tuple[Dataset, ...] = ()
    data: int = 0
    is_pushed: bool = False
    batch_size: int | None = None

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """All data sets, in the order common to all tasks."""
        return (*self.others[: self.data], self.dataset, *self.others[self.data :])

    @property
    def settings(self) -> RunSettings:
        """Settings sent to the tasks."""
        return msgspec.convert(self.config, RunSettings, from_attributes=True)

    @property
    def holder(self) -> str:
        """Name of this run for another run that waits for its model_dir."""
        job = f"job {self.context.job.job_id}, " if self.context else ""
        return f"{job}process {os.getpid()} on {socket.gethostname()}"

    def write_run_command(self) -> None:
        """Write the command of a training to model_dir, to run it again."""
        is_task = self.context is not None and self.context.mode is not None
        if (command := run_command_of_process(is_task)) is not None:
            model_dir.write_command(self.model_dir, command)

    def identity(self, plan: Plan, optimizer_folders: Sequence[str] = ()) -> dict[str, str]:
        """Return the identity of the run for a checkpoint: everything that its bits depend on.

        Another BLAS core, or another number of BLAS threads, sums in another order, so the same
        command gives different last digits (OPENBLAS_CORETYPE selects the core); so do kernels in
        machine code. The names of the optimizer's tensors are included. optimizer_folders: as in
        `TracedModel`.
        """
        return {
            "seed": str(self.config.seed),
            "precision": precision_text(plan),
            "batch_size": str(self.batch_size or plan.batch_size),
            "num_csx": str(plan.systems),
            "threads": str(threads_of(plan, cpus_of(plan, self.config.threads)).blas),
            "kernels": f"llvm, products {plan.products}" if plan.kernels == "llvm" else "numpy",
            "csrun": VERSION,
            "numpy": np.__version__,
            "blas": ", ".join(sorted(map(_blas_text, _blas_libraries()))),
            OPTIMIZER_STATE: " ".join([*(s.name for s in plan.store.slots), *optimizer_folders]),
        }


def precision_text(plan: Plan) -> str:
    """Return the name of a program's precision; for CB16 with the exponent bias."""
    return plan.precision if plan.storage is None else f"{MIXED}{plan.storage.text}"


def _blas_libraries() -> list[dict[str, Any]]:
    return [found for found in threadpool_info() if found["user_api"] == "blas"]


def _blas_text(library: dict[str, Any]) -> str:
    words = (library.get(key) for key in ("internal_api", "version", "architecture"))
    return " ".join(filter(None, words))
