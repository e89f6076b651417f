"""Constant folding of a graph: values that are constant over steps are computed in TensorFlow, by
static shapes.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.tensorflow.tf_version import tf

Array = npt.NDArray[Any]
_SHAPES = ("Shape", "ShapeN", "Size", "Rank")


def fold(ops: Iterable[Any]) -> dict[str, Array]:
    """Return the constants that other operators among these read, by tensor name.

    ops: in the order of creation.
    """
    constant, fed = set[str](), dict[str, Array]()
    wanted: dict[str, Any] = {}
    for op in ops:
        if (shapes := _static_shapes(op)) is not None:
            fed.update(shapes)
            constant.add(op.name)
        elif _is_foldable(op) and all(t.op.name in constant for t in op.inputs):
            constant.add(op.name)
        else:
            wanted.update({t.name: t for t in op.inputs if t.op.name in constant})
    return _evaluated(wanted, fed)


def value_of(tensor: Any) -> Array | None:
    """Return the value of a tensor that is constant over steps, else None."""
    from csrun.tensorflow.graph_gradients import ancestors

    fed = dict[str, Array]()
    for op in ancestors([tensor.op]):
        shapes = _static_shapes(op)
        if shapes is None and not _is_foldable(op):
            return None
        fed.update(shapes or {})
    return _evaluated({tensor.name: tensor}, fed)[tensor.name]


def _is_foldable(op: Any) -> bool:
    """True for an operator whose results are arrays that follow from its inputs."""
    is_source = not op.inputs and op.type != "Const"
    has_arrays = not any(tensor.dtype in (tf.variant, tf.resource) for tensor in op.outputs)
    return has_arrays and not (is_source or op.op_def.is_stateful)


def _static_shapes(op: Any) -> dict[str, Array] | None:
    """Return values of a shape operator, by output name; None for unknown ones."""
    if op.type not in _SHAPES or not all(t.shape.is_fully_defined() for t in op.inputs):
        return None
    kind = op.outputs[0].dtype.as_numpy_dtype
    sizes = [t.shape.as_list() for t in op.inputs]
    values = {"Size": [np.prod(sizes[0], dtype=kind)], "Rank": [len(sizes[0])]}.get(op.type, sizes)
    return {t.name: np.asarray(v, kind) for t, v in zip(op.outputs, values, strict=True)}


def _evaluated(wanted: Mapping[str, Any], fed: Mapping[str, Array]) -> dict[str, Array]:
    """Evaluate tensors; constants of the graph are read without a session, which would take
    longer.
    """
    plain = {name: t for name, t in wanted.items() if t.op.type == "Const"}
    values = {name: tf.get_static_value(tensor) for name, tensor in plain.items()}
    others = {name: tensor for name, tensor in wanted.items() if name not in plain}
    if others:
        graph = next(iter(others.values())).graph
        with tf.compat.v1.Session(graph=graph) as session:
            feeds = {graph.get_tensor_by_name(name): value for name, value in fed.items()}
            values |= session.run(others, feeds)
    return {name: np.asarray(value) for name, value in values.items()}
