"""Cache of the variants of a loop's step."""

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from csrun.base.mode import RunMode
from csrun.pytorch.gradients.edits import Edit, StepEdits
from csrun.pytorch.loop import program_limits
from csrun.pytorch.loop.edited_variants import EditedVariants
from csrun.pytorch.loop.loop_step import LoopStep
from csrun.pytorch.loop.readback import CHECKED_STEPS
from csrun.pytorch.loop.recorded_step import RecordedStep
from csrun.pytorch.run.script_run import ScriptRun
from csrun.pytorch.step.host_values import HostResults
from csrun.pytorch.step.variant import StepVariant
from csrun.pytorch.user import SessionLoader

Key = tuple[Any, ...]  # loader, samples of the batch, modes of the model, state of its guards

log = logging.getLogger("csrun")
_HAS_UPDATES = "updates are recorded with the step"


class VariantCache:
    """Variants by loader, size of the batch, modes of the model and state of its guards.

    The first three are a part of the loop. If its steps may differ in more than the guards detect,
    each of them is recorded, and its variant is found by its graph.

    session: equal for Sessions that share their variants.
    changed: returns the name of the last change among values that forward reads.
    recorded_for: reason why all steps are recorded; empty if they are not.
    has_updates: steps have their own updates. A variant is found by its graph, as if all steps were
        recorded, and is then expected of the next ones.
    """

    def __init__(
        self,
        run: ScriptRun,
        session: tuple[object, ...],
        model: torch.nn.Module,
        changed: Callable[[], str],
        recorded_for: str,
        *,
        has_updates: bool = False,
    ) -> None:
        self._run, self._changed, self._recorded_for = run, changed, recorded_for
        self._has_updates = has_updates
        self._causes = run.recorded_parts(session)
        self._variants: dict[Key, StepVariant] = {}
        self._earlier = run.variants_of(session, self._variants)
        # of each known variant, the last used one last
        self._recordings: dict[StepVariant, int] = {}
        self._full: set[Key] = set()  # parts in which a new variant replaces an old one
        self._edited = EditedVariants(model, run.compile)
        # key and variant of the last step; None if the next step must look its variant up
        self._last: tuple[Key, StepVariant] | None = None

    def reuse_last(self, key: Key) -> StepVariant | None:
        """Return the variant of the last step if it is also the variant of this key."""
        return self._last[1] if self._last is not None and self._last[0] == key else None

    def at(
        self, loader: SessionLoader, rows: int | None, modes: tuple[bool, ...], state: int
    ) -> StepVariant | None:
        """Return the variant for a batch, with the edits of gradients of its last step.

        None if it is not known, or if all steps of its part are recorded.
        """
        if self.reason_to_record((loader, rows, modes)):
            return None
        variant = self._variants.get((loader, rows, modes, state))
        return (
            variant
            if variant is None or not self.is_checked(variant)
            else self._edited.latest(variant)
        )

    def checked(
        self, found: StepVariant | None, key: Key, batch: Callable[[], Any]
    ) -> tuple[StepVariant | None, HostResults | None]:
        """Return the checked variant for a batch, and the host's results for its step.

        Results that depend on tensors passed to calls are not known yet.

        found: the variant `at` the key.
        """
        if found is None or not found.shape.host.has_results:
            if found is None or not self.is_checked(found):
                return None, None
            self._last = key, found
            return found, None
        close: tuple[StepVariant | None, HostResults | None] = None, None
        for first in self._checked(key):
            variant = self._edited.latest(first)
            if variant.shape.host.given:
                return variant, None
            computed = variant.shape.host.compute(batch(), {})
            if computed is not None and computed.is_exact:
                self._note_use(first)
                return variant, computed
            if computed is not None and close[0] is None:
                close = variant, computed
        return close

    def alike(self, key: Key) -> list[StepVariant]:
        """Return the checked variants of a key, which differ in shapes, latest first."""
        return [self._edited.latest(each) for each in self._checked(key)]

    def _checked(self, key: Key) -> list[StepVariant]:
        latest = self._variants.get(key)
        found = {each: None for own, each in self._variants.items() if own[:4] == key}
        known = found if latest is None else {latest: None, **found}
        checked = [each for each in known if self.is_checked(each)]
        # a number of rows that has a program of its own is not padded
        return sorted(checked, key=lambda each: each.unpadded is not None)

    def cause_of(self, key: Key) -> str:
        """Return why steps of a part of the loop may be different programs; else empty text."""
        return self.reason_to_record(key) or (_HAS_UPDATES if self._has_updates else "")

    def reason_to_record(self, key: Key) -> str:
        """Return why the next steps of a part of the loop are recorded; empty if they need not
        be.
        """
        return self._recorded_for or self._causes.get(key[:3], "")

    def record_all(self, recorded: RecordedStep, cause: str) -> None:
        """Record all further steps of a recorded step's part, and log that once."""
        self._last = None
        if not self.reason_to_record(recorded.key) and cause not in self._causes.values():
            log.info(f"{cause}: each step is recorded, since its graph may be another")
        for modes in (recorded.key[2], recorded.modes or recorded.key[2]):
            self._causes.setdefault((*recorded.key[:2], modes), cause)

    def is_checked(self, variant: StepVariant) -> bool:
        """True if its first steps are over; only checked variants get edited forms."""
        return self._recordings.get(variant, CHECKED_STEPS) >= CHECKED_STEPS

    def edited(self, variant: StepVariant, edits: StepEdits) -> StepVariant:
        """Return the variant with the loop's edits of the gradients."""
        found = self._edited.variant_of(variant, edits)
        if found is not variant:
            self._last = None
        return found

    def begun(self, variant: StepVariant, edits: StepEdits) -> StepVariant:
        """Return the variant of a step with these edits so far."""
        found = self._edited.begun(variant, edits)
        if found is not variant:
            self._last = None
        return found

    def norm_edit(self, variant: StepVariant, edits: StepEdits) -> Edit | None:
        """Return the edit that computes the norm by which all gradients are clipped, or None."""
        return self._edited.norm_edit(variant, edits)

    def ended(self, variant: StepVariant, recorded: RecordedStep) -> StepVariant:
        """Return the variant with the edits of a recorded step, which may end several batches."""
        self._last = None
        return self._edited.of_recorded(variant, recorded.recording)

    def switched(
        self, loader: SessionLoader, rows: int | None, modes: tuple[bool, ...], state: int
    ) -> StepVariant | None:
        """Return the variant with modes and guards as set after the batch, if it is known."""
        found = self._variants.get((loader, rows, modes, state))
        if found is None or found.shape.modes != modes or not self.is_checked(found):
            return None
        if self.reason_to_record((loader, rows, modes)):
            return None
        return self._edited.latest(found)

    def learn(self, step: LoopStep, recorded: RecordedStep, mode: RunMode) -> StepVariant:
        """Return the variant of a recorded step: a new one, or a known one that it equals."""
        variant, self._last = step.variant, None
        if variant is None:  # a variant whose modules are set between its batch and forward?
            variant = self._variants.get((*recorded.key[:2], recorded.modes, recorded.state))
        graph, accumulates = recorded.graph, self._run.accumulates
        graph.pad_rows(self._alike(recorded), accumulates)
        if variant is not None and (what := graph.difference(variant, accumulates)):
            if not graph.has_other_shapes(variant) and not self._has_updates:
                self.record_all(recorded, what)
            variant = None
        if variant is None:
            variant = self._same(recorded)
        if variant is not None:
            graph.join(variant, accumulates)
            self._variants[recorded.key] = self._variants[*recorded.key, variant] = variant
        else:
            variant = self._learn_new(step, recorded, mode)
        self._note_use(variant)
        self._recordings[variant] += 1
        return variant

    def _alike(self, recorded: RecordedStep) -> list[StepVariant]:
        """Return the variants of a step's part of the loop, and those of the last equal Session."""
        part = *recorded.key[:2], recorded.modes or recorded.key[2]
        both = (*self._variants.items(), *self._earlier.items())
        return list(dict.fromkeys(variant for key, variant in both if key[:3] == part))

    def _note_use(self, variant: StepVariant) -> None:
        self._recordings[variant] = self._recordings.pop(variant)

    def _same(self, recorded: RecordedStep) -> StepVariant | None:
        """Return a variant with another graph or guard state that computes the same.

        If there is none, the part has room for another.
        """
        part = *recorded.key[:2], recorded.modes or recorded.key[2]
        alike = {variant: None for key, variant in self._variants.items() if key[:3] == part}
        for variant in alike:
            if recorded.graph.is_same(variant):
                return variant
        for variant in alike:
            # most other counts and lengths need no comparison of operators
            if recorded.graph.has_shapes_of(variant) and not recorded.graph.difference(
                variant, self._run.accumulates
            ):
                return variant
        self._take_with_step(recorded, alike)
        cause = self.cause_of(part)
        is_by_graph = bool(cause or recorded.graph.host_line)
        if part not in self._full and is_by_graph:
            program_limits.warn_of_graphs(recorded, cause, alike, self._run.accumulates)
        elif part not in self._full and alike:
            program_limits.warn_of_states(alike, self._changed())
        most = program_limits.MOST_GRAPHS if is_by_graph else program_limits.MOST_STATES
        if len(alike) >= most:
            self._full.add(part)
            self._drop_one(alike)
        return None

    def _drop_one(self, alike: Collection[StepVariant]) -> None:
        """Drop the variant of a part that was not used for the longest time, and its program."""
        for variant in self._recordings:
            if variant in alike and self._run.drop([variant, *self._edited.forms_of(variant)]):
                self._edited.forget(variant)
                del self._recordings[variant]
                for key in [key for key, each in self._variants.items() if each is variant]:
                    del self._variants[key]
                return

    def _take_with_step(self, recorded: RecordedStep, alike: Iterable[StepVariant]) -> None:
        """Make the script's values that differ from a variant's inputs of each step."""
        for variant in alike:
            if changed := recorded.graph.changed_values(variant):
                if not recorded.graph.are_of_updates(changed):
                    line = recorded.graph.line_of(changed)
                    self.record_all(recorded, f"{line}: a tensor or number of the script changes")
                recorded.graph.read_model(self._run.stored_names)
                recorded.graph.take_with_step(changed, variant)
                return

    def _learn_new(self, step: LoopStep, recorded: RecordedStep, mode: RunMode) -> StepVariant:
        like = next((p for key, p in self._variants.items() if key[:2] == recorded.key[:2]), None)
        inputs = like.shape.inputs if like else None
        earlier = (e for key, e in self._earlier.items() if key[:3] == recorded.key[:3])
        variant = next((e for e in earlier if recorded.graph.takes_over(e, inputs)), None)
        if variant is not None:
            self._recordings[variant] = CHECKED_STEPS
        else:
            variant = recorded.graph.variant(step.batches, mode, inputs)
            variant.is_one_of_many = bool(self.cause_of(recorded.key) or recorded.graph.host_line)
            self._recordings[variant] = 0
        self._variants[recorded.key] = self._variants[*recorded.key, variant] = variant
        if recorded.modes:
            self._variants[*recorded.key[:2], recorded.modes, recorded.state] = variant
        # One of many is compiled when it runs, with the values that the loop has read by then;
        # one that adds state is compiled now, because the store has the state of all programs.
        is_stored = {*variant.recording.stored_names} <= {*self._run.stored_names}
        is_later = variant.is_one_of_many and is_stored
        if variant.executable is None and mode is RunMode.TRAIN and not is_later:
            self._run.compile(variant)
        return variant
