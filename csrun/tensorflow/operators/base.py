"""GraphEmission: the tracer that emitters write to, with helpers on constants and attributes."""

from collections.abc import Callable, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.cirh.ops.base import CirhOp, Plain
from csrun.cirh.ops.constant_arrays import ConstantOp
from csrun.cirh.types import tensor_type
from csrun.nn import Tensor
from csrun.nn.tracer import Tracer
from csrun.tensorflow.errors import UnsupportedOperator
from csrun.tensorflow.half_floats import HALVES, log_widened

Array = npt.NDArray[Any]
Value = Tensor | Array  # an array that is constant over steps
#: Takes an operator of a graph and its inputs; returns its outputs in order.
Emitter = Callable[..., "Value | tuple[Value, ...]"]

#: Integer types of TensorFlow that are other types in CIRH.
_WIDENED = {"uint8": "int32", "int8": "int32", "int16": "int32", "uint16": "int32"}


class GraphEmission:
    """A model in construction. op: the graph's operator that is being emitted.

    differentiated: names of the operators that gradients pass through.
    has_padded_labels: whether labels of -1 are padding, whose loss has no weight.
    """

    def __init__(
        self, tracer: Tracer, differentiated: Set[str], has_padded_labels: bool = False
    ) -> None:
        self.tracer = tracer
        self.differentiated = differentiated
        self.has_padded_labels = has_padded_labels
        self.op: Any = None

    def emit(self, kind: type[CirhOp], *operands: Value, **properties: Plain) -> Tensor:
        """Emit an operator and return its first result."""
        return self.tracer.emit(kind, *map(self.tensor, operands), **properties)

    def tensor(self, value: Value) -> Tensor:
        """Return a value as a tensor of the model."""
        if isinstance(value, Tensor):
            return value
        array = np.asarray(value).astype(self.dtype_of(np.asarray(value).dtype.name))
        declared = tensor_type(array.shape, array.dtype.name)
        if array.size and (array == array.flat[0]).all():
            return Tensor(self.tracer, self.tracer.builder.full(float(array.flat[0]), declared))
        packed = ConstantOp.packed(array)
        return Tensor(self.tracer, self.tracer.builder.leaf(ConstantOp, declared, values=packed))

    def dtype_of(self, name: str) -> str:
        """Return CIRH's name of a TensorFlow type; every float has the run's precision.

        Raises: UnsupportedOperator for a type without one
        """
        if name in HALVES:
            log_widened()
        if name in (*HALVES, "float32", "float64"):
            return self.tracer.precision
        found = _WIDENED.get(name, name)
        if found not in ("int32", "int64", "bool"):
            raise UnsupportedOperator(f"values of type {name} are not supported: cast them")
        return found

    def constant(self, value: Value, what: str) -> Array:
        """Return an input that must be constant over steps.

        Raises: UnsupportedOperator for one that is computed from the batch
        """
        if isinstance(value, Tensor):
            raise UnsupportedOperator(
                f"{what} depends on the values of the batch: only static shapes are supported"
            )
        return value

    def integers(self, value: Value, what: str) -> tuple[int, ...]:
        """Return a constant input as integers."""
        return tuple(int(n) for n in self.constant(value, what).reshape(-1))
