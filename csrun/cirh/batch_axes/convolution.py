"""Convolutions: per image; the weight's gradient is a sum over images."""

from collections.abc import Sequence
from dataclasses import replace

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import (
    Dependence,
    Rules,
    by_samples,
    combine_dependences,
    follow_gradient,
    sum_of_samples,
)
from csrun.cirh.ops.convolution import (
    ConvolutionBackwardInputOp,
    ConvolutionBackwardWeightOp,
    ConvolutionOp,
)


def convolve(op: Operation, of: Sequence[Dependence]) -> Dependence:
    x, *weights = of
    return by_samples(x, weights, 1)


def backward_input(op: Operation, of: Sequence[Dependence]) -> Dependence:
    grad, weight = of
    return follow_gradient(by_samples(grad, (weight,), 1), grad)


def backward_weight(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """A sum of products: zero where the gradient or the image is."""
    zero = any(one.is_zero_in_padding for one in of)
    return sum_of_samples(replace(combine_dependences(of, (), 1), padding=0 if zero else None))


RULES: Rules = {
    ConvolutionOp: convolve,
    ConvolutionBackwardInputOp: backward_input,
    ConvolutionBackwardWeightOp: backward_weight,
}
