"""Chief's part of a trace: collects the processes' rings and writes the file."""

import logging
from collections.abc import Sequence
from pathlib import Path

from csrun.base.errors import CsrunError
from csrun.executable import Plan
from csrun.records import trace_file
from csrun.records.trace_file import Process, Span
from csrun.runtime.chief.machine import Machine
from csrun.runtime.step.trace import SpanKind, SpanRecorder, Spans

log = logging.getLogger("csrun")

TRACKS = {
    SpanKind.INPUT: "input wait",
    SpanKind.WEIGHTS: "weights in",
    SpanKind.COMPUTE: "compute",
    SpanKind.GRADIENTS: "gradients out",
    SpanKind.SETTLE: "settle",
    SpanKind.UPDATE: "update",
    SpanKind.BATCH: "batch",
    SpanKind.ORDER: "order",
    SpanKind.CHECKPOINT: "checkpoint",
    SpanKind.LOG: "log",
    SpanKind.LAYER: "layers",
}


class ChiefTrace:
    """Traces the chief's own activity, and writes the trace of all processes when the steps are
    done.

    A file that cannot be written is a warning; the training continues. done: steps of earlier runs,
    whose file is kept.
    """

    def __init__(
        self, machine: Machine, steps: tuple[int, int] | None, model_dir: Path, done: int = 0
    ) -> None:
        self._machine, self._steps, self._model_dir = machine, steps, model_dir
        self._done = done
        self.recorder = SpanRecorder(steps)
        self._is_written = steps is None

    def add(self, kind: SpanKind, first: int, began_ns: int, count: int = 1) -> None:
        """Add the chief's activity for some steps until now, if one of them is traced."""
        if self.recorder.covers(first, count):
            self.recorder.add(kind, first, began_ns)

    def write_if_done(self, step: int, is_over: bool = False) -> None:
        """Write the file if `step` steps are done and no more will be traced."""
        if self._is_written or self._steps is None:
            return
        first, last = max(self._steps[0], self._done + 1), min(self._steps[1], step)
        if not is_over and step < self._steps[1]:
            return
        self._is_written = True
        if first > last:
            asked = " to ".join(map(str, self._steps))
            done = f"{self._done + 1} to {step}" if step > self._done else "none"
            log.warning(
                f"runconfig.trace_steps: steps {asked} were not traced: this run computed {done}"
            )
            return
        path = trace_file.path_of(self._model_dir, first, last)
        rings = [("chief", self.recorder.spans()), *self._machine.traced()]
        try:
            self._write(path, rings)
        except CsrunError as error:
            log.warning(
                f"Cannot write the trace of steps {first} to {last}, training continues: {error}"
            )
            return
        log.info(f"Trace of steps {first} to {last}: {path} (open in ui.perfetto.dev)")

    def write_partial(self) -> None:
        """Write what was traced so far, because the run ends by an error.

        This includes processes of this machine, alive or not. Remote peers are not queried: one is
        lost, and others may be in a transfer, or end before they answer.
        """
        if self._is_written or self._steps is None:
            return
        self._is_written = True
        # Not queried: a peer may never answer in a run that fails.
        rings = [("chief", self.recorder.spans()), *self._machine.traced(asks=False)]
        if not any(len(spans) for _, spans in rings):
            return
        path = trace_file.path_of(self._model_dir, *self._steps, is_whole=False)
        try:
            self._write(path, rings)
        except CsrunError as failed:
            log.warning(f"Cannot write the trace of the last steps: {failed}")
            return
        log.info(f"Trace of the last steps: {path} (open in ui.perfetto.dev)")

    def _write(self, path: Path, rings: Sequence[tuple[str, Spans]]) -> None:
        trace_file.write(path, (_process(self._machine.plans, *ring) for ring in rings))


def _process(plans: Sequence[Plan], name: str, spans: Spans) -> Process:
    found = []
    for kind, program, number, began_ns, ended_ns in spans.tolist():
        what = _name(plans[program], SpanKind(kind), number)
        found.append(Span(TRACKS[SpanKind(kind)], what, began_ns, ended_ns))
    return Process(name, tuple(found))


def _name(plan: Plan, kind: SpanKind, number: int) -> str:
    """Return the display name of a span: a visit by its layers, a step by its number."""
    if kind in (SpanKind.WEIGHTS, SpanKind.COMPUTE) and 0 <= number < plan.micro_batches * len(
        plan.visits
    ):
        micro_batch, visit = divmod(number, len(plan.visits))
        which = f"micro-batch {micro_batch}, " if plan.micro_batches > 1 else ""
        return f"{which}visit {visit}: {_layers(plan, plan.visits[visit].groups)}"
    if kind in (SpanKind.GRADIENTS, SpanKind.UPDATE) and 0 <= number < len(plan.groups):
        return f"group {number}: {_layers(plan, (number,))}"
    if kind is SpanKind.LAYER and 0 <= number < len(plan.marks):
        return plan.marks[number] or "no layer"
    if kind is SpanKind.COMPUTE:
        return "minibatches"
    return f"step {number + 1}"


def _layers(plan: Plan, groups: tuple[int, ...]) -> str:
    names = [layer for group in groups for layer in plan.groups[group].layers]
    return ", ".join(names) or "no weights"
