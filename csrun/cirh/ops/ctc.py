"""Connectionist temporal classification: loss of unaligned labels, forward and backward.

A target of S labels has 2 S + 1 states: its labels with a blank before, between and after them.
Source: Graves et al. 2006, sections 4.1 and 4.2; ATen's LossCTC.cpp
"""

from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import BoolAttr, IntegerAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.base import CirhOp, Properties, Types, integer, require_rank
from csrun.cirh.types import Tensor, dtype_of, is_integer, shape_of, tensor_type, text_of


class CtcOp(CirhOp):
    """Properties of the loss and its gradient.

    blank: class that is not a label.
    zero_infinity: the loss of a target that does not fit its input is 0 instead of infinity.
    """

    BY_SAMPLE: ClassVar = True

    blank = prop_def(IntegerAttr)
    zero_infinity = prop_def(BoolAttr)

    def loss(self, log_probs: Any, states: Any) -> Any:
        """Shapes: log_probs [T, C], states [2 S + 1] -> scalar"""
        return -np.logaddexp.reduce(paths(log_probs, states)[-1, -2:])

    def is_left_out(self, loss: Any) -> bool:
        """Return whether a loss counts as 0."""
        return bool(integer(self.properties, "zero_infinity")) and np.isinf(loss)


@irdl_op_definition
class CtcLossOp(CtcOp):
    """-log of the probability of each sample's target: the sum over all alignments.

    Only labels and log-probabilities within a sample's lengths are read.
    """

    name = "cirh.ctc_loss"
    log_probs = operand_def(TensorType)
    targets = operand_def(TensorType)
    input_lengths = operand_def(TensorType)
    target_lengths = operand_def(TensorType)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """Log-probabilities [T, N, C], targets [N, S], two times lengths [N] -> [N]."""
        require_sequences(types, properties)
        return tensor_type(shape_of(types[0])[1:2], dtype_of(types[0]))

    def gradients(self, back: Backward) -> Gradients:
        """The gradient of the log-probabilities; targets and lengths have none."""
        given = back.emit(CtcLossBackwardOp, back.grad, *back.operands, **back.options())
        return [given, None, None, None]

    def compute(self, log_probs: Any, targets: Any, *lengths: Any) -> Any:
        blank, found = integer(self.properties, "blank"), np.zeros(len(targets), log_probs.dtype)
        for n, (inputs, labels) in enumerate(zip(*lengths, strict=True)):
            loss = self.loss(log_probs[:inputs, n], states_of(targets[n, :labels], blank))
            found[n] = 0 if self.is_left_out(loss) else loss
        return found


@irdl_op_definition
class CtcLossBackwardOp(CtcOp):
    """grad times exp(log_probs) minus the probability of a class given the target; 0 after the end.

    As in ATen it is the gradient with respect to a log-softmax's result, and NaN if the loss or the
    log-probability is infinite.
    """

    name = "cirh.ctc_loss_backward"
    grad = operand_def(TensorType)
    log_probs = operand_def(TensorType)
    targets = operand_def(TensorType)
    input_lengths = operand_def(TensorType)
    target_lengths = operand_def(TensorType)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """Gradient [N], and as of the loss -> [T, N, C]."""
        expected = CtcLossOp.infer(types[1:], properties)
        if types[0] != expected:
            raise VerifyException(f"the gradient must be {expected}, got {types[0]}")
        return types[1]

    def compute(self, grad: Any, log_probs: Any, targets: Any, *lengths: Any) -> Any:
        blank, out = integer(self.properties, "blank"), np.zeros_like(log_probs)
        for n, (inputs, labels) in enumerate(zip(*lengths, strict=True)):
            own, states = log_probs[:inputs, n], states_of(targets[n, :labels], blank)
            loss = self.loss(own, states)
            if not self.is_left_out(loss):
                out[:inputs, n] = grad[n] * _slopes(own, states, loss)
        return out


def _slopes(log_probs: Any, states: Any, loss: Any) -> Any:
    """Shapes: log_probs [T, C], states [L], loss scalar -> [T, C]"""
    before = paths(log_probs, states)[1:]
    after = paths(log_probs[::-1], states[::-1])[:0:-1, ::-1]
    found = np.exp(log_probs)
    shares = np.exp(before + after - log_probs[:, states] + loss)
    index: Any = slice(None), states
    np.subtract.at(found, index, shares)
    return np.where(np.isinf(loss) | np.isneginf(log_probs), np.nan, found)


def states_of(labels: Any, blank: int) -> Any:
    """Shapes: labels [S] -> [2 S + 1]"""
    found = np.full(2 * len(labels) + 1, blank)
    found[1::2] = labels
    return found


def paths(log_probs: Any, states: Any) -> Any:
    """Return the log-probability of all paths that are in a state after a number of steps.

    A path stays in its state, continues to the next one, or skips a blank between two different
    labels.

    Shapes: log_probs [T, C], states [L] -> [T + 1, L]
    """
    found = np.full((len(log_probs) + 1, len(states)), -np.inf, log_probs.dtype)
    found[0, 0] = 0
    for t, row in enumerate(log_probs):
        for s, label in enumerate(states):
            steps = 2 if s > 1 and label != states[s - 2] else min(s, 1)
            found[t + 1, s] = np.logaddexp.reduce(found[t, s - steps : s + 1]) + row[label]
    return found


def require_sequences(types: Types, properties: Properties) -> None:
    """Raises: VerifyException unless these are log-probabilities, targets and lengths"""
    log_probs, targets, *lengths = types
    require_rank(log_probs, 3, "log-probabilities")
    require_rank(targets, 2, "targets")
    samples, classes = shape_of(log_probs)[1:]
    if not all(is_integer(each) for each in types[1:]):
        got = ", ".join(dtype_of(each) for each in types[1:])
        raise VerifyException(f"targets and lengths must be integers, got {got}")
    if any(shape_of(each) != (samples,) for each in lengths) or shape_of(targets)[0] != samples:
        got = ", ".join(text_of(each) for each in types)
        raise VerifyException(f"targets and lengths must have a row for each sample, got {got}")
    if not 0 <= integer(properties, "blank") < classes:
        raise VerifyException(
            f"blank must be in 0..{classes - 1}, got {integer(properties, 'blank')}"
        )


OPS = (CtcLossOp, CtcLossBackwardOp)
