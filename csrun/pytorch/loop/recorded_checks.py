"""Checks of recorded steps, and the dependencies of their values."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils._pytree import tree_leaves

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.lower.clipping import clipped_norm_of
from csrun.pytorch.record.draws import Draw
from csrun.pytorch.record.functions.composite_ops import draws_mask
from csrun.pytorch.record.recording import LeafSource, Recording, Ref, ancestors, ancestors_of
from csrun.pytorch.run.replay import ValueLostError
from csrun.pytorch.step.loop_calls import MODEL, Call


@dataclass(frozen=True, eq=False)
class ForwardCalls:
    """Calls of the model in a recorded step, and what they return.

    calls: of the loop.
    operators: of each call of the model.
    draws: random numbers that they draw.
    are_repeated: forward runs in each step, so that values it stores belong to that step.
    """

    calls: Sequence[Call]
    operators: list[slice]
    draws: Sequence[Draw]
    are_repeated: bool

    @property
    def results(self) -> list[Any]:
        """Results of each call of the model."""
        return [call.results for call in self.calls if call.name == MODEL]

    def keeps(self, recording: Recording, value: Ref) -> bool:
        """True for a value computed from one that forward has not returned, such as a hook's."""
        if self.are_repeated:
            return False
        known = {*refs_in(self.results), *recording.written.values()}
        made_of = ancestors(recording, [value], known) - known
        kept = (op for each in self.operators for op in recording.operators[each])
        drawn = any(draw.value in made_of for draw in self.draws)
        return drawn or any(result in made_of for op in kept for result in op.results)

    def require_returned(self, recording: Recording, value: Ref) -> None:
        """Raises: ValueLostError for a value made of one that forward has not returned"""
        if self.keeps(recording, value):
            raise kept_value_error()


def kept_value_error() -> ValueLostError:
    """Return the error for a value that forward has kept, which is read after its step."""
    return ValueLostError(
        f"{user_line()}: a value that forward has kept in a hook or an attribute is read after its "
        "step, and forward runs in the first steps only: read it before optimizer.step(), or "
        "return it from forward"
    )


def are_numbered_alike(one: Recording, other: Recording) -> bool:
    """True if equal numbers name equal values in both recordings."""
    results = ([op.results for op in each.operators] for each in (one, other))
    leaves = ([(leaf.value, leaf.name) for leaf in each.leaves] for each in (one, other))
    return next(results) == next(results) and next(leaves) == next(leaves)


def require_evaluation(recording: Recording) -> None:
    """Raises: UsageError for dropout, whose masks only a training draws, and for weights that are
    updated by gradients
    """
    for op in filter(draws_mask, recording.operators):
        what = op.name.partition("::")[2]
        raise UsageError(
            f"{op.line}: an evaluation computes {what} as in training: call model.eval() before "
            "it; in a training, call backward() before the next batch is taken"
        )
    updates = ancestors(recording, recording.written.values())
    for op in recording.operators:
        if op.is_backward and not updates.isdisjoint(op.results):
            raise UsageError(
                f"{op.line}: the step updates weights by gradients of this line and has not called "
                "backward(), so it has no loss: call backward() on the loss, not only "
                "torch.autograd.grad"
            )


def refs_in(tree: Any) -> list[Ref]:
    """Return the values of a recording in a tree."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Ref)]


def norm_in(recording: Recording, value: Ref) -> Ref | None:
    """Return the norm of clipped gradients, if a value is computed from it."""
    norm = clipped_norm_of(recording)
    return norm if norm is not None and is_of_forward(recording, value, {norm}) else None


def is_of_forward(recording: Recording, value: Ref, known: Collection[Ref] = ()) -> bool:
    """True for a value that depends on no gradient. known: values that it may depend on."""
    made_of = ancestors(recording, [value], known) - set(known)
    late = (op for op in recording.operators[recording.forward_end :] if op.is_backward)
    return not any(result in made_of for op in late for result in op.results)


def line_of_weights_in_edits(recording: Recording) -> str:
    """Return the line of a function of weights by which the loop edits gradients, such as a norm;
    empty text without one.

    Weights themselves are operands of edits in later steps, too.
    """
    edits = recording.operators[recording.backward_end :]
    needed = ancestors_of(edits, recording.gradients.values())
    known = {leaf.value for leaf in recording.of(LeafSource.CONSTANT)}
    weights = {leaf.value for leaf in recording.of(LeafSource.PARAMETER)}
    for op in edits:
        of_weights = not weights.isdisjoint(op.operands) and known.union(weights) >= {*op.operands}
        if of_weights and not needed.isdisjoint(op.results):
            return op.line
    return ""
