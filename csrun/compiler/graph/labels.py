"""Inputs that are labels of losses or indices, and their valid ranges.

Streamers check them, and count the labels of each loss; the counts are sent with each batch.
"""

from collections import defaultdict
from collections.abc import Sequence

from xdsl.ir import Operation

from csrun.cirh.batch_axes.label_sources import LabelSource, source_of_labels
from csrun.cirh.ops.embedding import EmbeddingOp
from csrun.cirh.ops.indexing import GatherBackwardOp, IndexingOp, IndexSelectBackwardOp
from csrun.cirh.ops.loss import NllLossForwardOp
from csrun.cirh.ops.model import InputOp
from csrun.cirh.ops.padding import LabelCountOp
from csrun.cirh.ops.shape import SelectOp
from csrun.cirh.ops.vocab_shards import EmbeddingPartOp, NllLossOfSumsOp
from csrun.cirh.types import shape_of, type_of
from csrun.executable import AxisSlice, LabelRange, NumberRange

Ranges = dict[InputOp, list[LabelRange]]
NumberRanges = dict[InputOp, list[NumberRange]]


def label_ranges(operations: Sequence[Operation]) -> Ranges:
    """Return for each input the ranges of the losses whose labels it holds, each once."""
    found: Ranges = defaultdict(list)
    for op in operations:
        match op:
            case NllLossForwardOp():
                classes = shape_of(type_of(op.x))[1]
            case NllLossOfSumsOp():
                classes = op.classes.value.data
            case _:
                continue
        if (source := source_of_labels(op.labels)) is not None:
            one = LabelRange(classes, op.ignore_index.value.data, _cuts(source))
            if one not in found[source.input]:
                found[source.input].append(one)
    inputs = [op for op in operations if isinstance(op, InputOp)]
    return {op: found[op] for op in inputs if op in found}


def number_ranges(operations: Sequence[Operation]) -> NumberRanges:
    """Return for each input the ranges of its use as indices, each once."""
    found: NumberRanges = defaultdict(list)
    for op in operations:
        match op:
            case EmbeddingOp():
                count = shape_of(type_of(op.weight))[0]
            case IndexingOp():
                count = shape_of(type_of(op.x))[op.dim.value.data]
            case GatherBackwardOp() | IndexSelectBackwardOp():
                count = shape_of(type_of(op.out))[op.dim.value.data]
            case EmbeddingPartOp():
                count = op.num_weights.value.data
            case _:
                continue
        source = source_of_labels(op.indices)
        if (
            source is not None
            and (one := NumberRange(count, _cuts(source))) not in found[source.input]
        ):
            found[source.input].append(one)
    return dict(found)


def place_of_count(op: LabelCountOp, ranges: Ranges) -> int | None:
    """Return the index among a batch's counts; None for labels that a streamer cannot count."""
    source, place = source_of_labels(op.labels), 0
    if source is None:
        return None
    wanted = op.ignore_index.value.data, _cuts(source)
    for found, of_input in ranges.items():
        for one in of_input:
            if found is source.input and (one.ignore_index, one.cuts) == wanted:
                return place
            place += 1
    return None


def _cuts(source: LabelSource) -> tuple[AxisSlice, ...]:
    return tuple(
        AxisSlice(op.dim.value.data, op.index.value.data)
        if isinstance(op, SelectOp)
        else AxisSlice(
            op.dim.value.data, op.start.value.data, op.end.value.data, op.step.value.data
        )
        for op in source.cuts
    )
