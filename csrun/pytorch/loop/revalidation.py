"""Revalidation: some steps after the first three are recorded and compared with step 1 again.

These are the first step after a checkpoint, and steps after the loop has set attributes of the
model; they also run on tokens. At the end of a block forward is compared once more.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from csrun.base.errors import UsageError
from csrun.data.adapters.torch_batches import generators_kept
from csrun.pytorch.errors import call_for_user, user_line
from csrun.pytorch.loop.recorded_checks import kept_value_error
from csrun.pytorch.lower.interpret import read_batch, reader_of
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.compare import difference
from csrun.pytorch.record.recorder import StepRecorder
from csrun.pytorch.record.recording import LeafSource, Recording, Ref
from csrun.pytorch.record.rows.operands import NotByRow
from csrun.pytorch.record.rows.padded import pad_rows, padded_rows_of
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.run.script_run import ScriptRun
from csrun.pytorch.step.expected_calls import Expected
from csrun.pytorch.step.loop_calls import MODEL
from csrun.pytorch.step.loop_shape import LoopShape
from csrun.pytorch.step.loop_writes import result_of
from csrun.pytorch.step.mutation_counters import Modes, ModuleSets
from csrun.pytorch.step.snapshots import Snapshot
from csrun.pytorch.step.step_outputs import Slot
from csrun.pytorch.step.tokens import Token
from csrun.pytorch.step.variant import StepVariant

SETS_EVERY = 8  # steps between two revalidations, if the loop sets something in each


class Revalidations:
    """Schedule of revalidations.

    It selects the first step of a variant after each checkpoint, and after the loop has set
    something in a module; if that happens in each step, one in `SETS_EVERY`.
    """

    def __init__(self, model: torch.nn.Module, run: ScriptRun, sets: ModuleSets) -> None:
        self._model, self._replay, self._sets = model, run.replay, sets
        self._every = run.run.config.save_checkpoints_steps
        self._at: dict[LoopShape, int] = {}  # the same for all edits of a variant
        self._set: dict[LoopShape, int] = {}  # count of sets when its forward has run
        self._hooks: dict[LoopShape, int] = {}  # count of changed hooks of gradients then
        self._steps: dict[LoopShape, int] = {}  # since then
        self._unseen: dict[LoopShape, tuple[StepVariant, int]] = {}  # and the guards at that time

    def note_forward(self, variant: StepVariant) -> StepVariant:
        """Note that forward's Python has run for a recorded variant."""
        self._note_seen(variant.shape, SETS_EVERY)
        self._unseen.pop(variant.shape, None)
        return variant

    def begun(
        self, variant: StepVariant, state: int, batch: Callable[[], Any] | None
    ) -> "Revalidation | None":
        """Return the revalidation of a step that begins, or None. state: of the guards."""
        self._unseen[variant.shape] = variant, state
        if not (reason := self.reason(variant.shape)):
            return None
        where = f"{self._replay.done + 1}, {reason}"
        numbers = batch() if batch is not None and variant.shape.host.has_results else None
        return Revalidation(self._model, variant, where, self._note_unchanged, numbers)

    def reason(self, shape: LoopShape) -> str:
        """Return why a step that begins is compared with step 1; empty if it is not."""
        now = self._replay.done // self._every
        is_behind = self._at.setdefault(shape, now) != now
        is_set = self._is_set(shape)
        if not (is_behind or is_set) or self._replay.is_on:
            return ""
        self._at[shape] = now
        return f"after the loop has set {self._sets.last}" if is_set else BEHIND

    def has_other_hooks(self, variant: StepVariant) -> bool:
        """True if hooks of gradients have changed since forward's Python ran for a variant."""
        return self._hooks[variant.shape] != self._sets.hooks

    def forget(self, variant: StepVariant) -> None:
        """Forget a variant that has run on tokens for the last time."""
        self._unseen.pop(variant.shape, None)

    def end(self, forward: Callable[..., Any], modes: Modes, state: int) -> None:
        """Compare forward of variants whose last steps have not run it, at the end of the block.

        A variant whose guards are in another state by now cannot be compared.

        Raises: UsageError if it computes something else than in step 1
        """
        if self._replay.is_on:
            return
        for variant, last in list(self._unseen.values()):
            own = variant.shape.modes
            if variant.trains and last == state and own and modes.have_same_gradients(own):
                where = f"{self._replay.done}, the last one of the block"
                host, batch = variant.shape.host, None
                if host.has_results:
                    batch = [leaf.tensor for leaf in variant.recording.of(LeafSource.INPUT)]
                    if host.given or host.compute(batch, {}) is None:
                        continue
                again = Revalidation(self._model, variant, where, self._note_unchanged, batch)
                with modes.trained_as(own):
                    again.run_forward(forward)

    def _note_unchanged(self, variant: StepVariant) -> None:
        self._note_seen(variant.shape, 0)
        self._unseen.pop(variant.shape, None)

    def _note_seen(self, shape: LoopShape, steps: int) -> None:
        self._set[shape], self._hooks[shape] = self._sets.seen, self._sets.seen_hooks
        self._steps[shape] = steps

    def _is_set(self, shape: LoopShape) -> bool:
        self._steps[shape] += 1
        return self._set[shape] != self._sets.count and self._steps[shape] >= SETS_EVERY


BEHIND = "the first one after a checkpoint"
_REMEDY = (
    "a loop must compute the same in each step; steps since the last check ran as step 1 and may "
    "be wrong"
)


class Revalidation:
    """The loop's calls of one step, repeated on traced tensors.

    step: its number and the reason, for messages.
    saw: called after forward has run.
    batch: values of the step's batch, if the host computes with them.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        variant: StepVariant,
        step: str,
        saw: Callable[[StepVariant], None],
        batch: Any = None,
    ) -> None:
        self._variant, self._step, self._saw = variant, step, saw
        self._recorder = StepRecorder(model)
        self._recorder.reader, self._recorder.may_draw = reader_of(self._recorder), True
        read_batch(self._recorder)
        # The step has the zero gradients of step 1; `Gradients.require_same_zeros` checks it.
        self._recorder.backward.require_cleared = lambda: variant.recording.zeros
        self._results: list[Ref] = []  # of the model
        self._arguments: dict[int, TracedTensor] = {}  # by the id of the script's tensor
        self.is_recording = False
        arrays = variant.shape.arrays
        numbers = [x for x in tree_leaves(batch) if isinstance(x, torch.Tensor)]
        numbers = numbers or [torch.empty_like(a.meta, device="cpu") for a in arrays]
        traced = self._recorder.batch(numbers)
        self._values: dict[Slot, TracedTensor] = dict(zip(arrays, traced, strict=True))

    def call(self, expected: Expected, func: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Repeat a call of the loop that step 1 made."""
        with self._recording(), self._recorder.scopes.within(expected.scope):
            self._take_arguments(expected, leaves_of(args, kwargs))
            own, options = tree_map(self._value, (args, dict(kwargs)))
            run = self._recorder.call_model if expected.name == MODEL else call_for_user
            found = result_of(func, own, run(func, own, options))
        (slots, spec), (values, now) = tree_flatten(expected.results), tree_flatten(found)
        are_traced = [isinstance(value, TracedTensor) for value in values]
        if spec != now or are_traced != [isinstance(slot, Slot) for slot in slots]:
            raise self._refused(
                f"{user_line()}: {expected.name} returns other types or structures than in step 1"
            )
        for slot, value in zip(slots, values, strict=True):
            if isinstance(slot, Slot):
                self._values[slot] = value
                self._results += [value.value] if expected.name == MODEL else []
        if not self._variant.trains and expected is self._variant.shape.calls[-1]:
            self._finish()

    def backward(self) -> None:
        """Repeat backward() on the loss."""
        loss = self._variant.shape.loss
        assert loss is not None, "of a training"
        with self._recording():
            self._values[loss].backward()
        self._finish()

    def run_forward(self, forward: Callable[..., Any]) -> None:
        """Make the calls of the model whose arguments are the batch and constants.

        Tensors that the loop has passed to a call have been freed by now.

        Raises: UsageError if they compute something else than in step 1
        """
        calls = [call for call in self._variant.shape.calls if call.name == MODEL]
        for expected in calls:
            slots = {o for o in expected.operands if isinstance(o, Slot)}
            if expected.spec is None or not slots <= self._values.keys():
                return
            args, kwargs = tree_unflatten(map(self._operand, expected.operands), expected.spec)
            with torch.enable_grad():
                self.call(expected, forward, args, kwargs)
        self._saw(self._variant)
        results = (leaf for call in calls for leaf in tree_leaves(call.results))
        goals = [leaf.value for leaf in results if isinstance(leaf, Slot)]
        first, again = self._variant.recording, self._recorded()
        if what := difference(first, goals, again, self._results):
            raise self._refused(what)

    def _finish(self) -> None:
        """Raises: UsageError where the step computes something else than step 1 did"""
        self._saw(self._variant)
        first, again = self._variant.recording, self._recorded()
        if self._variant.trains:
            what = difference(first, first.before_edits, again, again.before_edits)
        else:
            goals = [*self._results, *again.written.values()]
            what = difference(first, self._variant.goals, again, goals)
        if what:
            raise self._refused(what)

    def _recorded(self) -> Recording:
        """Return the recording, with padded rows if those of the variant are."""
        found = self._recorder.finish()
        self._recorder.reader = _refuse_read  # the step runs on tokens, which have other numbers
        if self._variant.recording.row_axes:
            with suppress(NotByRow):
                return pad_rows(found, (), padded_rows_of(self._variant.recording))
        return found

    @contextmanager
    def _recording(self) -> Iterator[None]:
        self.is_recording = True
        try:
            with unrecorded(), generators_kept(), self._recorder:
                yield
        finally:
            self.is_recording = False

    def _take_arguments(self, expected: Expected, given: list[Any]) -> None:
        """Make tensors of the script among the arguments inputs of the step, as in step 1."""
        for operand, argument in zip(expected.operands, given, strict=True):
            if isinstance(operand, Slot) and operand.is_argument:
                self._arguments[id(argument)] = self._recorder.plain.as_input(argument)

    def _value(self, argument: Any) -> Any:
        if id(argument) in self._arguments:
            return self._arguments[id(argument)]
        if not isinstance(argument, Token):
            return argument
        found = self._values[argument.slot]
        return found if argument.requires_grad or not found.requires_grad else found.detach()

    def _operand(self, operand: Any) -> Any:
        if isinstance(operand, Slot):
            return self._values[operand]
        return operand.tensor if isinstance(operand, Snapshot) else operand

    def _refused(self, what: str) -> UsageError:
        return UsageError(f"{what}, found in step {self._step}: {_REMEDY}")


def _refuse_read(traced: TracedTensor) -> torch.Tensor:
    """Raises: ValueLostError for a value that forward has kept in a hook or an attribute"""
    raise kept_value_error()
