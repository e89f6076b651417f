"""Connectionist temporal classification in log space, for all samples and states of a time step at
once.

A target of S labels has 2 S + 1 states: its labels with a blank before, between and after them.
Source: Graves et al. 2006, equations 6 to 11; ATen's LossCTC.cpp
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from csrun.base.errors import CsrunError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Sequences:
    """Inputs of a batch, the states of its targets, and the allowed transitions.

    labels: class of each state.
    skips: 0 where a path may skip a state, else -inf.
    ends: 0 where a path may end, else -inf.

    Shapes: log_probs [T, N, C], input_lengths [N], labels, skips, ends [N, L]
    """

    log_probs: Array
    input_lengths: Array
    labels: Array
    skips: Array
    ends: Array

    @classmethod
    def of(
        cls, log_probs: Array, targets: Array, lengths: tuple[Array, Array], blank: int, where: str
    ) -> Self:
        """Shapes: targets [N, S], lengths of inputs and of targets [N]

        Raises: CsrunError for a length or a label that is out of range
        """
        most, _, classes = log_probs.shape
        input_lengths, target_lengths = lengths
        _require_range(input_lengths, most, f"{where}: input_lengths")
        _require_range(target_lengths, targets.shape[1], f"{where}: target_lengths")
        longest = int(target_lengths.max(initial=0))
        is_label = np.arange(longest) < target_lengths[:, None]
        states, last = np.arange(2 * longest + 1), 2 * target_lengths[:, None].astype(np.int64)
        labels = np.full((len(targets), len(states)), blank)
        labels[:, 1::2] = np.where(is_label, targets[:, :longest], blank)
        _require_range(labels, classes - 1, f"{where}: targets")
        skips, ends = np.full((2, *labels.shape), -np.inf, log_probs.dtype)
        skips[:, 2:][labels[:, 2:] != labels[:, :-2]] = 0
        ends[(states == last) | (states == last - 1)] = 0
        return cls(log_probs, input_lengths, labels, skips, ends)

    def emitted(self, time: int) -> Array:
        """Return the log-probability of each state's class at a time step. Shapes: [N, L]"""
        return np.take_along_axis(self.log_probs[time], self.labels, axis=1)

    def forward(self) -> Iterator[Array]:
        """Yield the log-probability of all paths to each state, after 0, 1, … time steps.

        Shapes: [N, L]
        """
        found = self._impossible()  # two more states before the first
        found[:, 2] = 0
        yield found[:, 2:]
        for time in range(self.input_lengths.max(initial=0)):
            skipping = found[:, :-2] + self.skips
            found[:, 2:] = _log_sum(found[:, 2:], found[:, 1:-1], skipping) + self.emitted(time)
            yield found[:, 2:]

    def backward(self) -> Iterator[tuple[int, Array]]:
        """Yield each time step, the last first, and the log-probability of all paths from each
        state.

        Only later time steps count, without the class emitted at this one.

        Shapes: [N, L]
        """
        found = self._impossible()  # two more states after the last
        for time in reversed(range(self.input_lengths.max(initial=0))):
            skipping = found[:, 2:].copy()
            skipping[:, :-2] += self.skips[:, 2:]
            found[:, :-2] = _log_sum(found[:, :-2], found[:, 1:-1], skipping)
            ending = self.input_lengths == time + 1
            found[:, :-2][ending] = self.ends[ending]
            yield time, found[:, :-2]
            found[:, :-2] += self.emitted(time)

    def loss(self, kept: Array | None = None) -> Array:
        """Return the loss of each sample, and save the values of `forward`.

        Shapes: kept [T + 1, N, at least L] -> [N]
        """
        found = np.empty(len(self.labels), self.log_probs.dtype)
        for times, paths in enumerate(self.forward()):
            if kept is not None:
                kept[times, :, : paths.shape[1]] = paths
            ended = self.input_lengths == times
            found[ended] = -np.logaddexp.reduce(paths[ended] + self.ends[ended], axis=1)
        return found

    def _impossible(self) -> Array:
        samples, states = self.labels.shape
        return np.full((samples, states + 2), -np.inf, self.log_probs.dtype)


def ctc_loss(
    log_probs: Array,
    targets: Array,
    input_lengths: Array,
    target_lengths: Array,
    out: Array,
    blank: int,
    leaves_out: bool,
    where: str,
) -> None:
    """CTC loss [T, N, C] -> [N]; infinite losses are 0 with `leaves_out`.

    Shapes: log_probs [T, N, C], targets [N, S], lengths and out [N]
    """
    lengths = input_lengths, target_lengths
    loss = Sequences.of(log_probs, targets, lengths, blank, where).loss()
    out[...] = np.where(np.isinf(loss), 0, loss) if leaves_out else loss


@np.errstate(invalid="ignore")  # of an infinite loss
def ctc_loss_backward(
    grad: Array,
    log_probs: Array,
    targets: Array,
    input_lengths: Array,
    target_lengths: Array,
    out: Array,
    kept: Array,
    blank: int,
    leaves_out: bool,
    where: str,
) -> None:
    """CTC loss gradient [N] -> [T, N, C]: exp(log_probs) minus the share of paths with the class.

    Shapes: grad, lengths [N], log_probs, out [T, N, C], targets [N, S], kept [T + 1, N, 2 S + 1]
    """
    lengths = input_lengths, target_lengths
    sequences = Sequences.of(log_probs, targets, lengths, blank, where)
    loss = sequences.loss(kept)
    is_left_out = np.isinf(loss) & leaves_out
    scale = np.where(np.isinf(loss), np.nan, grad).astype(out.dtype)
    samples = np.arange(len(grad))[:, None]
    out[...] = 0
    for time, paths in sequences.backward():
        shares = np.exp(kept[time + 1, :, : paths.shape[1]] + paths + loss[:, None])
        slopes = np.exp(log_probs[time])
        np.subtract.at(slopes, (samples, sequences.labels), shares)
        slopes[np.isneginf(log_probs[time])] = np.nan  # as PyTorch's
        counts = (time < input_lengths) & ~is_left_out
        np.multiply(slopes, scale[:, None], out=out[time], where=counts[:, None])


def _log_sum(a: Array, b: Array, c: Array) -> Array:
    """Return log(exp(a) + exp(b) + exp(c)), -inf if all are."""
    largest = np.maximum(np.maximum(a, b), c)
    largest[np.isneginf(largest)] = 0
    sums = np.exp(a - largest) + np.exp(b - largest) + np.exp(c - largest)
    with np.errstate(divide="ignore"):
        found: Array = np.log(sums) + largest
    return found


def _require_range(values: Array, most: int, what: str) -> None:
    """Raises: CsrunError for a value that is not in 0..most"""
    if values.size and (values.min() < 0 or values.max() > most):
        wrong = values[(values < 0) | (values > most)].flat[0]
        raise CsrunError(f"{what} of a ctc_loss must be in 0..{most}, got {wrong}")
