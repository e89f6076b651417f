"""A script that is only compiled or validated: its first program, without steps."""

import sys
from dataclasses import dataclass, field, replace

from csrun.base.errors import UsageError
from csrun.context import Preparation, analysis_dir
from csrun.estimator.prepare import log_prepared, prepare_traced
from csrun.estimator.target import compile_target
from csrun.pytorch.errors import user_line
from csrun.pytorch.run.compiling import Compiling
from csrun.pytorch.run.orders import TrainingOrders
from csrun.pytorch.run.replay import Replay
from csrun.pytorch.run.script_run import ScriptRun
from csrun.pytorch.step.queued_step import QueuedStep
from csrun.pytorch.step.variant import Batches, KnownBatches, StepVariant
from csrun.pytorch.user import SessionLoader
from csrun.runtime.wire.rendezvous import announce_done


@dataclass
class Prepared(ScriptRun):
    """Run that ends once the program of its loop is compiled, or its kernels are matched.

    No system is leased, and no checkpoint is read. If the launcher analyses the input, the
    program's DataLoader is measured first. In a training, evaluations before the first step are
    prepared as well: the loop gets one batch of each, whose values PyTorch computes.

    waits: a variant is only stored, and the script continues until it calls `prepare`.
    noted: the last stored variant.
    """

    only: Preparation = Preparation.COMPILE_ONLY
    waits: bool = False
    noted: StepVariant | None = None
    _prepared: set[StepVariant] = field(default_factory=set)

    def __post_init__(self) -> None:
        target = compile_target(self.run.context, self.run.config)
        self._compiling = Compiling(self.users, target)
        self._batches = KnownBatches(self.loaders)
        self.replay = Replay(self.run.model_dir, self.users)
        self._orders = TrainingOrders(self.users, self.replay)  # which gets none

    def enter(self) -> None:
        """Enter a Session's block; model_dir is not locked."""
        self.run, self.is_open = replace(self.run, folder=self.folder()), True

    def batches_of(self, loader: SessionLoader) -> Batches:
        """Return a loader's batches: one."""
        batches = super().batches_of(loader)
        batches.most = 1
        return batches

    def queue(self, step: QueuedStep) -> None:
        """Prepare a step's variant; the step is not run."""
        if step.variant not in self._prepared:
            self.compile(step.variant)

    def prepare(self, only: Preparation) -> None:
        """Compile the stored variant, or match its kernels; the job's other tasks end.

        Raises: UsageError if no step was made
        """
        if self.noted is None:
            raise UsageError(f"{user_line()}: compile: the loop has made no step")
        self.only = only
        self._prepare(self.noted)
        if self.run.folder is not None:
            announce_done(self.run.folder, {})

    def compile(self, variant: StepVariant) -> None:
        """Compile or validate a variant; exit with code 0 after the training's first one.

        Without a training, after the first one of an evaluation.
        """
        if self.waits:
            self.noted = variant
            return
        self._prepare(variant)
        if self.users.optimization is not None and not variant.trains:
            return
        if self.run.folder is not None:
            announce_done(self.run.folder, {})
        sys.exit(0)

    def _prepare(self, variant: StepVariant) -> None:
        self._prepared.add(variant)
        data = variant.batches.loader.dataset_of_batches
        run = replace(self.run, dataset=data, make=lambda: data)
        tracing, options = self._compiling.configured(run, variant)
        prepare_traced(run, tracing, options, self.only)
        log_prepared(self.only, variant.run_mode)


def require_no_feeding() -> None:
    """Raises: UsageError in a job of the analyzer that only streams batches"""
    from csrun.advice.measurements import FeedRequest  # of an analysis only

    folder = analysis_dir()
    if folder is not None and FeedRequest.read(folder) is not None:
        raise UsageError(
            f"{user_line()}: cs_input_analyzer --verify is for estimators: leave --verify out for "
            "a PyTorch loop"
        )
