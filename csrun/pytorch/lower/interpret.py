"""Interpreter of a recording: the values that PyTorch itself computes, with the same bits."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from csrun.data.adapters.torch_batches import on_one_thread
from csrun.pytorch.deferred_init.tape import materialize
from csrun.pytorch.errors import call_for_user
from csrun.pytorch.lower.dropout_masks import MaskKey, masks_of
from csrun.pytorch.record.arguments import map_arguments
from csrun.pytorch.record.functions.composite_ops import DRAWING, draws_mask
from csrun.pytorch.record.recorder import StepRecorder
from csrun.pytorch.record.recording import RecordedOperator, Recording, Ref
from csrun.pytorch.record.torch_modes import above_autograd, onednn
from csrun.pytorch.record.traced import TracedTensor

LazyTensor = dict[Ref, torch.Tensor]
_OF_LABELS = ("aten.nll_loss", "aten.gather", "aten.scatter")  # PyTorch requires int64 for these
Masks = Mapping[int, torch.Tensor]


def interpret(
    recording: Recording,
    wanted: Iterable[Ref],
    given: Mapping[str, torch.Tensor] | None = None,
    draw: MaskKey | None = None,
    known: Mapping[Ref, torch.Tensor] | None = None,
    computed: LazyTensor | None = None,
) -> LazyTensor:
    """Compute values of a recording with PyTorch, from the leaves of step 1.

    given: replacements of leaves, by name.
    draw: seed of dropout masks, which are those of the compiled step.
    known: values that need not be computed.
    computed: values computed before; new ones are added.
    """
    wanted, given, known = list(wanted), given or {}, known or computed or {}
    leaves = {leaf.value: leaf for leaf in recording.leaves}
    needed = _needed(recording, wanted, known)
    numbers = _ComputedValues(
        lambda ref: (
            materialize(given.get(leaves[ref].name, leaves[ref].tensor))
            .detach()
            .to(recording.kind(ref).dtype)
        )  # the store may have a wider type
    )
    numbers.update(known)
    with _disable_current_modes():  # it lowers constants, which must not be recorded
        masks = masks_of(recording, draw or MaskKey()) if _has_dropout(recording, needed) else {}
    with (
        torch.no_grad(),
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        above_autograd(),
    ):
        for number in needed:
            _compute(number, recording.operators[number], numbers, masks)
    if computed is not None:
        computed.update(numbers)
    return {ref: numbers[ref] for ref in wanted}


class _ComputedValues(dict[Ref, torch.Tensor]):
    """Computed values; a leaf is looked up at each use, so that none need stay in memory."""

    def __init__(self, of_leaf: Callable[[Ref], torch.Tensor]) -> None:
        super().__init__()
        self._of_leaf = of_leaf

    def __missing__(self, ref: Ref) -> torch.Tensor:
        return self._of_leaf(ref)


def _compute(number: int, op: RecordedOperator, numbers: LazyTensor, masks: Masks) -> None:
    arguments, keywords = map_arguments(
        lambda a: numbers[a] if isinstance(a, Ref) else a, op.arguments, op.keywords
    )
    mask = masks.get(number if op.forward is None else op.forward)
    if mask is not None and op.name in DRAWING:
        keywords["kept"] = mask
    if op.name.startswith(_OF_LABELS):
        arguments, _ = map_arguments(_widened, arguments, {})
    # Strides may differ from those of recorded tensors, so that a view may need a copy.
    call = torch.reshape if op.name == "aten.view.default" else op.call
    found = call_for_user(call, arguments, keywords)
    each = found if isinstance(found, tuple | list) else [found]
    for ref, x in zip(op.results, each, strict=True):
        if ref is not None:
            numbers[ref] = x.resolve_conj()  # recorded tensors have no conjugate bit


def _widened(argument: Any) -> Any:
    is_tensor = isinstance(argument, torch.Tensor)
    return argument.long() if is_tensor and argument.dtype is torch.int32 else argument


def _needed(recording: Recording, wanted: Sequence[Ref], known: Container[Ref]) -> list[int]:
    """Return the numbers of the operators that the values depend on, in order."""
    needed, found = set(wanted), []
    for number, op in reversed(list(enumerate(recording.operators))):
        if any(ref in needed and ref not in known for ref in op.results):
            needed.update(op.operands)
            found.append(number)
    return found[::-1]


def _has_dropout(recording: Recording, needed: Iterable[int]) -> bool:
    return any(draws_mask(recording.operators[number]) for number in needed)


def numbers_of_batch(
    recording: Recording, wanted: Iterable[Ref], known: Mapping[Ref, torch.Tensor] | None = None
) -> LazyTensor:
    """Compute values that only depend on the batch, with the same bits on any number of CPUs."""
    with onednn(True), on_one_thread():
        return interpret(recording, wanted, known=known)


def reader_of(recorder: StepRecorder) -> Callable[[TracedTensor], torch.Tensor]:
    """Return a recorder's reader that interprets the recording so far."""

    def read(traced: TracedTensor) -> torch.Tensor:
        with onednn(True):
            return interpret(recorder.so_far(), [traced.value])[traced.value]

    return read


def read_batch(recorder: StepRecorder) -> None:
    """Let a recorder compute values that only depend on the batch."""

    def read(traced: TracedTensor) -> torch.Tensor:
        return numbers_of_batch(recorder.so_far(), [traced.value])[traced.value]

    recorder.host.reader, recorder.host.drawing = read, DRAWING
