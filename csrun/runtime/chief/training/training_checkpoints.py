"""Checkpoints of a training: the steps that have one, and the state that is in it."""

import logging
from time import perf_counter_ns

from csrun.base.run_config import RunSettings
from csrun.context.deferred_termination import DeferredTermination
from csrun.records import checkpoints
from csrun.records.ledger import Row
from csrun.runtime.chief.machine import Machine
from csrun.runtime.chief.training.saving import Saving, outcome
from csrun.runtime.chief.training.tracing import ChiefTrace
from csrun.runtime.chief.training.training_record import LoopOptions, TrainingRecord
from csrun.runtime.chief.training.weight_writes import WeightWrites
from csrun.runtime.step.scale_rows import ScaleTracker
from csrun.runtime.step.trace import SpanKind

log = logging.getLogger("csrun")


class TrainingCheckpoints:
    """Checkpoints of the steps of a training.

    saving: the one in progress.
    writes: changes of the weights by the script since the last step.
    """

    def __init__(
        self,
        machine: Machine,
        options: LoopOptions,
        ending: DeferredTermination,
        scale: ScaleTracker | None,
        record: TrainingRecord,
        trace: ChiefTrace,
    ) -> None:
        self._machine, self._options, self._ending = machine, options, ending
        self._scale, self._record, self._trace = scale, record, trace
        folder = options.model_dir
        writer = checkpoints.Writer(folder, options.identity, options.checkpoints_kept)
        remedy = _remedy_of_values(options.settings)
        self.saving = Saving(folder, writer, ending, options.first or None, remedy)
        self.writes = WeightWrites(machine)

    def save_due(self, step: int) -> None:
        """Begin the checkpoint of this step, if one is due and has not begun."""
        if step % self._options.checkpoint_steps == 0 and self.saving.newest != step:
            self._begin(step)

    def save(self, step: int) -> None:
        """Save unless the newest checkpoint is of this step; it is complete on return."""
        if self.saving.newest != step:
            self._begin(step)
        self.saving.wait()
        self._record.mark(Row.CHECKPOINT)

    def save_before_end(self, step: int, reason: str) -> None:
        """Write the checkpoint of a run that must end, if the grace period allows it."""
        log.info(f"{reason}: training ends after global step {step}")
        self.saving.wait()
        seconds, left_s = self.saving.seconds, self._ending.left_s
        if self.saving.newest != step and left_s is not None and seconds > left_s:
            log.warning(
                f"No checkpoint at global step {step}: the last one took {seconds:.1f} s "
                f"and {max(0.0, left_s):.1f} s of grace are left; raise grace_s in the site "
                "file, or save more often"
            )
            return
        self.save(step)
        log.info(outcome(step, is_whole=True))

    def _begin(self, step: int) -> None:
        self._record.mark(Row.CHIEF)
        began_ns = perf_counter_ns()
        more = {**self._options.extra_tensors(step), **(self._scale.tensors if self._scale else {})}
        more |= self.writes.replaced
        with self.writes.undone(self.saving.wait):
            state, unchecked = {**self._machine.state, **more}, self._options.unchecked
            self.saving.begin(step, state, self._machine.pause_updates, more, unchecked)
        self._record.mark(Row.CHECKPOINT)
        self._trace.add(SpanKind.CHECKPOINT, step - 1, began_ns)


def _remedy_of_values(settings: RunSettings) -> str:
    """Return the remedy for non-finite numbers."""
    remedy = "lower the learning rate"
    if settings.check_numerics:
        return remedy
    return f"{remedy}, or set runconfig.check_numerics: true to find the sample"
