"""The inputs that are labels of losses, or numbers of rows of tables, and what they may hold.

The streamers check them, and count the labels that a loss counts; the counts come with each batch.
"""

from collections import defaultdict
from collections.abc import Sequence

from xdsl.ir import Operation

from csrun.cirh.batch_axes import labels_input
from csrun.cirh.ops.batch import LabelCountOp
from csrun.cirh.ops.embedding import EmbeddingOp
from csrun.cirh.ops.loss import NllLossForwardOp
from csrun.cirh.ops.model import InputOp
from csrun.cirh.types import shape_of, type_of
from csrun.executable import LabelRange

Ranges = dict[InputOp, list[LabelRange]]


def label_ranges(operations: Sequence[Operation]) -> Ranges:
    """The ranges of the losses whose labels are an input's, each once, for each input."""
    found: Ranges = defaultdict(list)
    for op in operations:
        if isinstance(op, NllLossForwardOp) and (source := labels_input(op.labels)) is not None:
            one = LabelRange(shape_of(type_of(op.x))[1], op.ignore_index.value.data)
            if one not in found[source]:
                found[source].append(one)
    inputs = [op for op in operations if isinstance(op, InputOp)]
    return {op: found[op] for op in inputs if op in found}


def vocabularies(operations: Sequence[Operation]) -> dict[InputOp, int]:
    """The rows of the smallest table that an input's values are looked up in."""
    found: dict[InputOp, int] = {}
    for op in operations:
        if isinstance(op, EmbeddingOp) and (source := labels_input(op.indices)) is not None:
            rows = shape_of(type_of(op.weight))[0]
            found[source] = min(rows, found.get(source, rows))
    return found


def place_of_count(op: LabelCountOp, ranges: Ranges) -> int | None:
    """Which of a batch's counts it is; None for labels that no streamer can count."""
    source, place = labels_input(op.labels), 0
    for found, of_input in ranges.items():
        for one in of_input:
            if found is source and one.ignore_index == op.ignore_index.value.data:
                return place
            place += 1
    return None
