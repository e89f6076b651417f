"""tf.stop_gradient: accepted for values without a gradient, or whose gradient is zero."""

from collections.abc import Iterator, Sequence
from typing import Any

from csrun.nn import Tensor
from csrun.tensorflow.errors import UnsupportedOperator
from csrun.tensorflow.operators.base import Emitter, GraphEmission, Value

_RESHAPES = ("Reshape", "Squeeze", "ExpandDims", "Identity")  # keep the order of the elements


def stop_gradient(e: GraphEmission, op: Any, x: Value | Sequence[Value | None]) -> Any:
    """Accepted for values that no gradient passes through, or whose gradient is zero.

    tf.nn.moments stops the gradient of a mean within the variance, where it is zero;
    tf.reduce_logsumexp that of the maximum, which it subtracts before and adds after the sum.

    x: a value, or the items of a TensorArray
    """
    values = x if isinstance(x, list) else [x]
    is_trained = op.name in e.differentiated and any(map(depends_on_weights, values))
    if not is_trained or _is_mean_of_variance(op) or _is_shift_of_logsumexp(op):
        return x
    raise UnsupportedOperator(
        "tf.stop_gradient (or back_prop=False) of a value that weights are trained through: leave "
        "it out, or leave its weights out of the optimizer's var_list"
    )


def _is_mean_of_variance(op: Any) -> bool:
    """True for m = mean(x) that only mean((x - m)^2) reads, along the same axes."""
    stopped, mean = op.outputs[0], op.inputs[0].op
    if mean.type != "Mean" or not mean.get_attr("keep_dims"):
        return False
    return all(
        squares.type == "SquaredDifference"
        and read is stopped
        and any(tensor is mean.inputs[0] for tensor in squares.inputs)
        and all(
            end.type == "Mean" and _axes(end) == _axes(mean)
            for end in squares.outputs[0].consumers()
        )
        for squares, read in _readers(stopped)
    )


def _is_shift_of_logsumexp(op: Any) -> bool:
    """True for m that only log(sum(exp(x - m))) + m reads, with one element per sum."""
    readers = [*_readers(op.outputs[0])]
    ends = [(user, read) for user, read in readers if user.type in ("Add", "AddV2")]
    if len(readers) != 2 or len(ends) != 1:
        return False
    ((end, added),) = ends
    ((difference, subtracted),) = [each for each in readers if each not in ends]
    (result,) = (tensor for tensor in end.inputs if tensor is not added)
    log = _source(result)
    if log.type != "Log" or difference.type != "Sub" or difference.inputs[1] is not subtracted:
        return False
    total = _source(log.inputs[0])
    if total.type != "Sum" or total.inputs[0].op.type != "Exp":
        return False
    exponential = total.inputs[0].op
    if exponential.inputs[0] is not difference.outputs[0]:
        return False
    chain = (difference, exponential, total, log)
    if any(len([*_readers(each.outputs[0])]) != 1 for each in chain):
        return False
    if added.shape.num_elements() == 1:
        return True
    sums = [1 if n in _axes(total) else size for n, size in enumerate(total.inputs[0].shape)]
    return bool(added.shape == result.shape and subtracted.shape == sums)


def _readers(tensor: Any) -> Iterator[tuple[Any, Any]]:
    """Operators that read a tensor's values, each with the tensor that it reads, maybe reshaped."""
    for user in tensor.consumers():
        if user.type in _RESHAPES and user.inputs[0] is tensor:
            yield from _readers(user.outputs[0])
        elif user.type != "Shape":
            yield user, tensor


def _source(tensor: Any) -> Any:
    """Operator that computed a tensor's values, before they were reshaped."""
    while tensor.op.type in _RESHAPES:
        tensor = tensor.op.inputs[0]
    return tensor.op


def _axes(reduction: Any) -> set[int]:
    """Axes that an operator reduces."""
    from csrun.tensorflow.graph_folding import value_of  # imports TensorFlow

    axes, rank = value_of(reduction.inputs[1]), reduction.inputs[0].shape.rank
    if axes is None:
        raise UnsupportedOperator("the axes of a reduction depend on the values of the batch")
    return {int(axis) % rank for axis in axes.reshape(-1)}


def depends_on_weights(value: Value | None) -> bool:
    """True for floats that a parameter is among the ancestors of."""
    if not isinstance(value, Tensor) or value.dtype in ("int32", "int64", "bool"):
        return False
    pending, seen = [value.value.owner], set()
    while pending:
        owner: Any = pending.pop()
        if owner in seen:
            continue
        seen.add(owner)
        if owner.name == "cirh.parameter":
            return True
        pending += [operand.owner for operand in owner.operands]
    return False


EMITTERS: dict[str, Emitter] = {"StopGradient": stop_gradient}
