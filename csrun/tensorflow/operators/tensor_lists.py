"""TensorArrays of unrolled loops: lists of the values that were written."""

from typing import Any

import numpy as np

from csrun import nn
from csrun.tensorflow.errors import UnsupportedOperator
from csrun.tensorflow.operators.base import Emitter, GraphEmission, Value

Items = list[Value | None]


def reserve(e: GraphEmission, op: Any, element_shape: Value, count: Value) -> Any:
    (size,) = e.integers(count, "the size of the TensorArray")
    return [None] * size


def from_tensor(e: GraphEmission, op: Any, x: Value, element_shape: Value) -> Any:
    value = e.tensor(x)
    return [value[n] for n in range(value.shape[0])]


def set_item(e: GraphEmission, op: Any, items: Items, index: Value, item: Value) -> Any:
    """Return the list with an item set; a list of dynamic size grows.

    Raises: UnsupportedOperator for an index beyond a fixed size
    """
    (place,) = e.integers(index, "the index")
    if not 0 <= place < len(items) and (
        place < 0 or not op.get_attr("resize_if_index_out_of_bounds")
    ):
        raise UnsupportedOperator(
            f"index {place} is outside the TensorArray of size {len(items)}: give it a larger size"
        )
    grown = [*items, *[None] * (place + 1 - len(items))]
    return [item if n == place else each for n, each in enumerate(grown)]


def get_item(e: GraphEmission, op: Any, items: Items, index: Value, element_shape: Value) -> Value:
    (place,) = e.integers(index, "the index")
    item = items[place] if 0 <= place < len(items) else None
    if item is None:
        raise UnsupportedOperator(f"element {place} of the TensorArray is read before its write")
    return item


def stack(e: GraphEmission, op: Any, items: Items, element_shape: Value) -> Value:
    if missing := [n for n, item in enumerate(items) if item is None]:
        raise UnsupportedOperator(f"elements {missing} of the TensorArray are not written")
    if not items:
        raise UnsupportedOperator("nothing is written to the TensorArray that is stacked")
    return nn.stack([e.tensor(item) for item in items if item is not None])


def length(e: GraphEmission, op: Any, items: Items) -> Value:
    return np.array(len(items), np.int32)


EMITTERS: dict[str, Emitter] = {
    "TensorListReserve": reserve,
    "TensorListFromTensor": from_tensor,
    "TensorListSetItem": set_item,
    "TensorListGetItem": get_item,
    "TensorListStack": stack,
    "TensorListLength": length,
}
