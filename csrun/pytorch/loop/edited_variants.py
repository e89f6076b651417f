"""Variants of a step that differ in the loop's edits of gradients."""

import logging
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.gradients.edits import Edit, StepEdits, with_edits_of, without_dead_edits
from csrun.pytorch.lower.clipping import clipped_norm_of
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.compare import difference
from csrun.pytorch.record.recorder import StepRecorder
from csrun.pytorch.record.recording import Recording, Ref, ancestors
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.step.variant import StepVariant

MOST_FORMS = 8  # maximum edited forms of one variant: one program each
MOST_KEPT = 64  # cached forms, some of which only differ in how they read gradients

log = logging.getLogger("csrun")


class EditedVariants:
    """Cache of variants by the edits of their gradients, latest first.

    compile: compiles a new variant.
    """

    def __init__(self, model: torch.nn.Module, compile: Callable[[StepVariant], None]) -> None:
        self._model, self._compile = model, compile
        self._forms: dict[StepVariant, list[tuple[StepEdits, StepVariant]]] = {}  # latest first
        self._first: dict[StepVariant, StepVariant] = {}
        self._recorded: dict[StepVariant, StepVariant] = {}  # forms of recorded steps
        self._begun: WeakKeyDictionary[StepEdits, bool] = WeakKeyDictionary()
        self._norms: WeakKeyDictionary[StepEdits, Edit | None] = WeakKeyDictionary()

    def latest(self, variant: StepVariant) -> StepVariant:
        """Return the variant that the last step used."""
        forms = self._forms.get(variant)
        return forms[0][1] if forms else self._recorded.get(variant, variant)

    def forms_of(self, variant: StepVariant) -> list[StepVariant]:
        """Return the variants that differ from a variant in their edits."""
        found = [form for _, form in self._forms.get(variant, ()) if form is not variant]
        recorded = self._recorded.get(variant, variant)
        return found if recorded is variant else [*found, recorded]

    def forget(self, variant: StepVariant) -> None:
        """Forget a variant and its forms."""
        for form in self.forms_of(variant):
            self._first.pop(form, None)
        self._forms.pop(variant, None)
        self._recorded.pop(variant, None)

    def of_recorded(self, variant: StepVariant, recording: Recording) -> StepVariant:
        """Return the variant of a recorded step that ends several batches.

        Raises: UsageError for edits that cannot apply to a sum of gradients
        """
        goals = [*recording.before_edits, *recording.gradients.values()]
        for form in (variant, self.latest(variant)):
            own = [*form.recording.before_edits, *form.recording.gradients.values()]
            if difference(form.recording, own, recording, goals) is None:
                return form
        edited = with_edits_of(variant.recording, recording)
        if edited is None:
            raise UsageError(
                f"{user_line()}: accumulated gradients are edited with values of one batch: clip "
                "them by clip_grad_norm_, or leave them as they are"
            )
        self._recorded[variant] = found = self._form(variant, edited)
        return found

    def variant_of(self, variant: StepVariant, edits: StepEdits) -> StepVariant:
        """Return the variant with other edits.

        Raises: UsageError for too many variants, or edits that cannot be recorded
        """
        first = self._first.get(variant, variant)
        forms = self._forms.setdefault(first, [])
        if forms and forms[0][0] is edits:  # as in the previous step
            return forms[0][1]
        place = next((n for n, (kept, _) in enumerate(forms) if kept.is_same(edits)), None)
        if place is not None:
            found = forms.pop(place)[1]
            forms.insert(0, (edits, found))
            return found
        found = self._new(first, edits)
        forms.insert(0, (edits, found))
        del forms[MOST_KEPT:]
        self._first[found] = first
        return found

    def begun(self, variant: StepVariant, edits: StepEdits) -> StepVariant:
        """Return the variant of a step with these edits so far.

        It is the current one if its edits begin with them, and it makes others later.
        """
        if not edits.are_written:
            return variant
        if edits not in self._begun:
            recorder = StepRecorder.resume(self._model, self._first.get(variant, variant).recording)
            edited, _ = edits.recorded(recorder, self._first.get(variant, variant).recording)
            made, known = _edits_in(edited), _edits_in(variant.recording)
            self._begun[edits] = known[: len(made)] == made
        return variant if self._begun[edits] else self.variant_of(variant, edits)

    def norm_edit(self, variant: StepVariant, edits: StepEdits) -> Edit | None:
        """Return the edit that computes the norm by which all gradients are finally clipped."""
        if edits not in self._norms:
            self._norms[edits] = self._find_norm(self._first.get(variant, variant), edits)
        return self._norms[edits]

    def _find_norm(self, first: StepVariant, edits: StepEdits) -> Edit | None:
        recorder = StepRecorder.resume(self._model, first.recording)
        edited, results = edits.recorded(recorder, first.recording)
        norm = clipped_norm_of(edited)
        for edit, made in zip(edits.all, results, strict=True):
            values = [leaf.value for leaf in made if isinstance(leaf, TracedTensor)]
            if norm is not None and values == [norm] and edit.target is None:
                return edit
        return None

    def _new(self, first: StepVariant, edits: StepEdits) -> StepVariant:
        recording = first.recording
        edited, _ = edits.recorded(StepRecorder.resume(self._model, recording), recording)
        assert recording.loss is not None, "of a training"
        goals = [recording.loss, *edited.gradients.values(), *recording.written.values()]
        recorded = self._recorded.get(first, first)
        forms = {form: None for _, form in self._forms.get(first, ())}
        # a read alone makes no other variant
        for known in dict.fromkeys((first, recorded, *forms)):
            if difference(known.recording, known.goals, edited, goals) is None:
                return known
        if len(forms) >= MOST_FORMS:
            raise UsageError(
                f"{edits.line or user_line()}: the loop edits gradients in more than {MOST_FORMS} "
                "ways, and each needs a program: change the lr instead, which may differ in each "
                "step, or give the Session lists, [model] and [optimizer], which send the numbers"
            )
        log.info("Recompiling: the loop edits gradients differently than before")
        edited = without_dead_edits(edited, [*goals, *first.shape.values])
        found = self._form(first, edited)
        self._compile(found)
        return found

    def _form(self, first: StepVariant, edited: Recording) -> StepVariant:
        assert edited.loss is not None, "of a training"
        goals = [edited.loss, *edited.gradients.values(), *edited.written.values()]
        outputs = self.latest(first).outputs
        return StepVariant(edited, first.shape, first.batches, first.run_mode, goals, outputs)


def _edits_in(recording: Recording) -> list[tuple[Any, ...]]:
    """Return the operators on gradients that the updates depend on, with their numbers."""
    needed = ancestors(recording, recording.gradients.values())
    late = recording.operators[recording.backward_end :]
    return [
        (op.name, *(x for x in leaves_of(op.arguments, op.keywords) if not isinstance(x, Ref)))
        for op in late
        if not needed.isdisjoint(op.results)
    ]
