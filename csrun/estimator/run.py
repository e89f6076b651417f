"""One run, that is one call of the estimator, as its chief sees it."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from threadpoolctl import threadpool_info

from csrun.base.run_config import CSRunConfig, RunSettings
from csrun.context import TaskContext
from csrun.data import Dataset
from csrun.estimator.input_report import InputReports
from csrun.estimator.trace import ModelFunction
from csrun.executable import Plan
from csrun.records.checkpoints import OPTIMIZER_STATE
from csrun.runtime.wire.rendezvous import RunFolder


@dataclass(frozen=True)
class Run:
    """What the chief was given; each mode is a function of it.

    context, folder: None without a launcher. reports: what the estimator's runs have said of their
    input functions. dataset: what input_fn gave; make: makes it anew. others: further data sets,
    for programs that are loaded later. data: the number of the first one's among all, which are in
    one order in all tasks.
    """

    model_fn: ModelFunction
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

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """All of them, in the order that all tasks have them in."""
        return (*self.others[: self.data], self.dataset, *self.others[self.data :])

    @property
    def settings(self) -> RunSettings:
        """What the tasks go by of the configuration."""
        return msgspec.convert(self.config, RunSettings, from_attributes=True)

    @property
    def holder(self) -> str:
        """How this run is named to another that wants its model_dir."""
        job = f"job {self.context.job.job_id}, " if self.context else ""
        return f"{job}process {os.getpid()} on {socket.gethostname()}"

    def identity(self, plan: Plan) -> dict[str, str]:
        """What a checkpoint says of the run that wrote it: all that its bits depend on.

        Another BLAS core adds up in another order, and so does another number of threads: the same
        command then gives other last digits (OPENBLAS_CORETYPE chooses the core). And which of
        the tensors are the optimizer's.
        """
        return {
            "seed": str(self.config.seed),
            "precision": self.config.precision,
            "batch_size": str(plan.batch_size),
            "num_csx": str(plan.systems),
            "threads": str(plan.blas_threads),
            "numpy": np.__version__,
            "blas": ", ".join(sorted(map(_blas_text, _blas_libraries()))),
            OPTIMIZER_STATE: " ".join(slot.name for slot in plan.store.slots),
        }


def _blas_libraries() -> list[dict[str, Any]]:
    return [found for found in threadpool_info() if found["user_api"] == "blas"]


def _blas_text(library: dict[str, Any]) -> str:
    words = (library.get(key) for key in ("internal_api", "version", "architecture"))
    return " ".join(filter(None, words))
