"""Packed sequences, recorded as padded ones with their lengths.

PyTorch packs the valid steps of all sequences into rows, whose number depends on the lengths. A
recording has the padded rows instead: a recurrent layer computes all of them, and each sequence
keeps its state past its end, so that one program serves all lengths of a batch with the same
longest sequence. A function of packed rows that is no recurrent layer gets the valid ones, which
the host selects in each step. They are one tensor for all functions, so that writes into it and its
views are seen by all of them; recurrent layers then get its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from csrun.pytorch.errors import CaptureError
from csrun.pytorch.record.arguments import leaves_of, map_arguments
from csrun.pytorch.record.scopes import Scopes

#: Functions that do not depend on the number of rows.
_OF_ANY_ROWS = {
    torch.Tensor.dim,
    torch.Tensor.is_floating_point,
    *(
        getattr(torch.Tensor, name).__get__
        for name in ("dtype", "device", "layout", "ndim", "requires_grad", "is_cuda")
    ),
}
#: Functions that change a tensor's place in the autograd graph, or its memory, by name.
_OF_ONE_TENSOR = {
    getattr(torch.Tensor, name): name
    for name in (
        *("register_hook", "register_post_accumulate_grad_hook", "retain_grad"),
        *("requires_grad_", "detach_", "set_", "resize_", "resize_as_"),
    )
} | {
    getattr(torch.Tensor, name).__set__: f"an assignment to {name}"
    for name in ("requires_grad", "data", "grad", "_backward_hooks")
}


class _PackingRecorder(Protocol):
    """The recorder, as used here."""

    scopes: Scopes
    packed: PackedSequences

    def is_constant(self, tensor: torch.Tensor) -> bool: ...

    def refusal(self, what: str) -> CaptureError: ...


@dataclass(frozen=True)
class _Packed:
    """Padded rows in place of packed ones.

    Shapes: rows [T * B, ...], sizes [T], lengths [B]; mask [T, B], true where a row is valid.
    """

    rows: Any
    sizes: torch.Tensor
    lengths: Any
    mask: Any

    @property
    def by_step(self) -> Any:
        """Rows by time step. Shapes: -> [T, B, ...]"""
        return self.rows.unflatten(0, self.mask.shape)

    def with_rows(self, valid: Any) -> _Packed:
        """Return the padded form of other valid rows."""
        places = self.mask.flatten().nonzero().squeeze(1)
        padded = torch.zeros(self.mask.numel(), *valid.shape[1:], dtype=valid.dtype)
        return _Packed(padded.index_add(0, places, valid), self.sizes, self.lengths, self.mask)


@dataclass(frozen=True)
class _ValidRows:
    """Valid rows of a packed sequence. Their value becomes another one when they are written."""

    rows: Any
    first: Any

    @property
    def is_written(self) -> bool:
        """True if a function has written into the rows or a view of them."""
        return bool(self.rows.value != self.first)


class PackedSequences:
    """Packed sequences of one recording, by the ids of their rows and of their `batch_sizes`.

    `batch_sizes` is a constant here, as if all sequences were as long as the longest.
    """

    def __init__(self, recorder: _PackingRecorder) -> None:
        self._recorder = recorder
        self._by_rows: dict[int, _Packed] = {}
        self._by_sizes: dict[int, _Packed] = {}
        self._valid: dict[int, _ValidRows] = {}  # by the ids of the padded rows

    def __bool__(self) -> bool:
        return bool(self._by_rows)

    def add(self, rows: Any, sizes: torch.Tensor, lengths: Any, mask: Any) -> None:
        """Note padded rows that stand for packed ones."""
        packed = _Packed(rows, sizes, lengths, mask)
        self._by_rows[id(rows)] = packed
        self._by_sizes.setdefault(id(sizes), packed)

    def find(self, rows: Any, sizes: Any) -> _Packed | None:
        """Return the padded form of packed rows; None if they were not packed in forward."""
        if (found := self._by_rows.get(id(rows))) is not None:
            valid = self._valid.get(id(rows))
            return found.with_rows(valid.rows) if valid and valid.is_written else found
        like = self._by_sizes.get(id(sizes))
        return like and like.with_rows(rows)

    def with_valid_rows(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """Return a function's arguments with the valid rows in place of padded ones.

        Raises: CaptureError for a function of `batch_sizes`, or of the tensor of rows as such
        """
        if not self._by_rows or func in _PACKED or func in _OF_ANY_ROWS:
            return args, kwargs
        if func is torch.Tensor.size and args[1:] == (-1,):
            return args, kwargs
        leaves = leaves_of(args, kwargs)
        if any(id(leaf) in self._by_sizes for leaf in leaves):
            self._require_first(func, args)
        if not any(id(leaf) in self._by_rows for leaf in leaves):
            return args, kwargs
        if (name := _OF_ONE_TENSOR.get(func)) is not None and id(args[0]) in self._by_rows:
            raise self._recorder.refusal(
                f"{name} of a packed sequence's data is not supported: take x = "
                "packed.data.clone(), call it on x, and use PackedSequence(x, *packed[1:])"
            )
        return map_arguments(self._valid_rows, args, kwargs)

    def for_custom_function(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of an `autograd.Function`, with the valid rows."""
        return tuple(map(self._valid_rows, args)) if self._by_rows else args

    def require_not_recomputed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raises: CaptureError if an operator of the backward pass gets padded rows"""
        if any(id(leaf) in self._by_rows for leaf in leaves_of(args, kwargs)):
            raise self._recorder.refusal(
                "torch.utils.checkpoint recomputes functions of a packed sequence, which is not "
                "supported: give it x = packed.data.clone(), or call them without a checkpoint"
            )

    def require_padded(self, results: Any) -> None:
        """Raises: CaptureError if there is a packed sequence among forward's results"""
        if any(id(leaf) in self._by_rows for leaf in tree_leaves(results)):
            raise self._recorder.refusal(
                "forward returns a packed sequence: call pad_packed_sequence in forward"
            )

    def forget(self) -> None:
        """Forget the sequences, because the step is recorded again from its beginning."""
        self._by_rows.clear()
        self._by_sizes.clear()
        self._valid.clear()

    def _valid_rows(self, argument: Any) -> Any:
        if (packed := self._by_rows.get(id(argument))) is None:
            return argument
        if (valid := self._valid.get(id(argument))) is None:
            with torch._C.DisableTorchFunction(), torch.enable_grad():  # for later functions
                rows = packed.by_step[packed.mask]
            valid = self._valid[id(argument)] = _ValidRows(rows, rows.value)
        return valid.rows

    def _require_first(self, func: Any, args: tuple[Any, ...]) -> None:
        """Raises: CaptureError unless only the number of sequences is read"""
        is_first = func is torch.Tensor.__getitem__ and args[1:] == (0,)
        if not is_first and func not in (torch.Tensor.size, torch.Tensor.__len__):
            raise self._recorder.refusal(
                "batch_sizes of a packed sequence are read, but the recording only has padded "
                "rows: use the lengths that pad_packed_sequence returns"
            )


def pack(recorder: _PackingRecorder, input: Any, lengths: Any, batch_first: bool) -> Any:
    """Return padded rows up to the longest sequence, with zeros as padding, and constant sizes.

    Shapes: input [T, B, ...] or [B, T, ...], lengths [B] -> [longest * B, ...], [longest]
    """
    if not recorder.scopes.is_in_forward:
        return NotImplemented
    steps = input.transpose(0, 1) if batch_first else input
    if recorder.is_constant(lengths):
        steps = steps[: int(lengths.max())]
    else:
        steps = steps[torch.arange(len(steps)) < lengths.max()]
    sizes = torch.full((len(steps),), steps.shape[1])
    mask = torch.arange(len(steps))[:, None] < lengths
    padding = ~mask.unflatten(1, (-1, *(1,) * (steps.dim() - 2)))
    rows = steps.masked_fill(padding, 0).flatten(0, 1)  # gradients of NaN would be NaN
    recorder.packed.add(rows, sizes, lengths, mask)
    return rows, sizes


def pad(
    recorder: _PackingRecorder,
    data: Any,
    batch_sizes: Any,
    batch_first: bool,
    padding_value: float,
    total_length: int,
) -> Any:
    """Return steps with the padding value past the end of each sequence, and the lengths.

    Shapes: data [T * B, ...] -> [total_length, B, ...] or [B, total_length, ...], [B]
    """
    packed = recorder.packed.find(data, batch_sizes)
    if packed is None:
        return NotImplemented
    steps = packed.by_step
    mask = packed.mask.unflatten(1, (-1, *(1,) * (steps.dim() - 2)))
    steps = torch.where(mask, steps, padding_value)
    if more := total_length - len(steps):
        steps = torch.cat([steps, steps.new_full((more, *steps.shape[1:]), padding_value)])
    return steps.transpose(0, 1) if batch_first else steps, packed.lengths


def _lstm_cell(x: Any, state: Sequence[Any], *hidden: Any) -> tuple[Any, ...]:
    i, f, g, o = (x + functional.linear(state[0], *hidden)).chunk(4, -1)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru_cell(x: Any, state: Sequence[Any], *hidden: Any) -> tuple[Any, ...]:
    gates = functional.linear(state[0], *hidden).chunk(3, -1)
    r, z = ((a + b).sigmoid() for a, b in zip(x.chunk(3, -1)[:2], gates[:2], strict=True))
    new = (x.chunk(3, -1)[2] + r * gates[2]).tanh()
    return (new + z * (state[0] - new),)


def _tanh_cell(x: Any, state: Sequence[Any], *hidden: Any) -> tuple[Any, ...]:
    return ((x + functional.linear(state[0], *hidden)).tanh(),)


def _relu_cell(x: Any, state: Sequence[Any], *hidden: Any) -> tuple[Any, ...]:
    return ((x + functional.linear(state[0], *hidden)).relu(),)


_CELLS: Mapping[Any, Callable[..., tuple[Any, ...]]] = {
    torch.lstm: _lstm_cell,
    torch.gru: _gru_cell,
    torch.rnn_tanh: _tanh_cell,
    torch.rnn_relu: _relu_cell,
}
_PACKED = {torch._pack_padded_sequence, torch._pad_packed_sequence, *_CELLS}


def run_recurrent(
    recorder: _PackingRecorder,
    func: Any,
    data: Any,
    batch_sizes: Any,
    state: Any,
    weights: Sequence[Any],
    has_biases: bool,
    layers: int,
    dropout: float,
    is_training: bool,
    is_bidirectional: bool,
) -> Any:
    """Run a recurrent network on a packed sequence. Returns its rows and its last states.

    Shapes: data [T * B, D], states [layers * directions, B, H]
    Raises: CaptureError for an LSTM with projections
    """
    packed = recorder.packed.find(data, batch_sizes)
    if packed is None:
        return NotImplemented
    runs = layers * (2 if is_bidirectional else 1)
    size = len(weights) // runs
    if size != (4 if has_biases else 2):
        raise recorder.refusal(
            "an LSTM with proj_size gets a packed sequence, which is not supported: use a linear "
            "layer after an LSTM without proj_size"
        )
    states = state if isinstance(state, list | tuple) else (state,)
    x, last = packed.by_step, []
    for layer in range(layers):
        if layer and dropout and is_training:
            x = functional.dropout(x, dropout)
        found = []
        for run in range(layer * runs // layers, (layer + 1) * runs // layers):
            own = [each[run] for each in states]
            parts = weights[run * size : (run + 1) * size]
            is_reverse = is_bidirectional and run % 2 == 1
            out, *ends = _run(_CELLS[func], x, packed.mask, own, parts, is_reverse)
            found.append(out)
            last.append(ends)
        x = torch.cat(found, -1)
    rows = x.flatten(0, 1)
    recorder.packed.add(rows, packed.sizes, packed.lengths, packed.mask)
    return rows, *(torch.stack(each) for each in zip(*last, strict=True))


def _run(
    cell: Callable[..., tuple[Any, ...]],
    x: Any,
    mask: Any,
    state: Sequence[Any],
    weights: Sequence[Any],
    is_reverse: bool,
) -> tuple[Any, ...]:
    """Run one layer in one direction. Returns its steps [T, B, H] and its last state."""
    gates = functional.linear(x, weights[0], *weights[2:3])
    steps: list[Any] = [None] * len(gates)
    for step in reversed(range(len(gates))) if is_reverse else range(len(gates)):
        new = cell(gates[step], state, weights[1], *weights[3:4])
        is_valid = mask[step][:, None]
        state = [torch.where(is_valid, a, b) for a, b in zip(new, state, strict=True)]
        steps[step] = state[0]
    return torch.stack(steps), *state
