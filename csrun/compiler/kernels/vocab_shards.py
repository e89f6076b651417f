"""Kernels over one shard of a table: lookups, and a cross entropy over its classes."""

from dataclasses import dataclass
from functools import cached_property
from math import prod

from xdsl.ir import Operation

from csrun.cirh.batch_axes.label_sources import source_of_labels
from csrun.cirh.ops.vocab_shards import (
    EmbeddingPartBackwardOp,
    EmbeddingPartOp,
    LogSumExpPartOp,
    NllLossOfSumsOp,
    NllLossPartBackwardOp,
)
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import (
    Kernel,
    Matcher,
    Name,
    Phase,
    bound_struct,
    indices_inside,
)
from csrun.compiler.kernels.cross_entropy import loss_sum
from csrun.compiler.kernels.embedding import IMPORT, LookupBackward, rows_of
from csrun.compiler.kernels.padding import first_of_padding, labels_of
from csrun.compiler.kernels.softmax_cross_entropy import CrossEntropyForward, LossOperands
from csrun.compiler.lair.formula import Values, formula_loop
from csrun.compiler.lair.loop import KernelLoop
from csrun.compiler.lair.loop_kernel import LoopKernel


def _places(stem: str, labels: Array) -> Array:
    """Scratch: index of each label or lookup within the shard; invalid if in another shard."""
    return Array(f"{stem}/places", labels.shape, "int64")


def _inside(stem: str, labels: Array) -> Array:
    """Scratch: whether it is within the shard."""
    return Array(f"{stem}/inside", labels.shape, "bool")


def _shard(first: int, stem: str, indices: Array, name: Name) -> tuple[str, str]:
    """Return the variable of a shard's struct, and the line that binds it.

    Shards that are looked up one after the other share their scratch, and differ in `first`.
    """
    places, inside = name(_places(stem, indices)), name(_inside(stem, indices))
    variable = f"{places}_from_{first}"
    fields = {"first": str(first), "places": places, "inside": inside}
    return variable, bound_struct(variable, "embedding.Shard", fields)


@dataclass(frozen=True)
class LookupPart(Kernel):
    """out = before, usually in place, with the rows of the shard; zeros if there is no `before`.

    count: rows of the table, if the indices are not known to be in range.

    Shapes: weight [R, D], indices [N], before [N, D] -> out [N, D]
    """

    weight: Array
    indices: Array
    before: Array | None
    out: Array
    first: int
    count: int | None

    kind = "embedding"

    @property
    def reads(self) -> tuple[Array, ...]:
        before = () if self.before is None else (self.before,)
        return self.weight, self.indices, *before

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.out,)

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Return scratch: the row of the shard for each index, whether it is in it, and the
        rows.
        """
        stem = self.out.name
        rows = Array(f"{stem}/rows", self.out.shape, self.out.dtype)
        return _places(stem, self.indices), _inside(stem, self.indices), rows

    def prepare(self, name: Name) -> list[str]:
        """Bind the shard: its first row and its scratch."""
        return [IMPORT, _shard(self.first, self.out.name, self.indices, name)[1]]

    def check(self, name: Name) -> list[str]:
        """Range check of indices that the host has not validated, before the first shard."""
        if self.before is not None or self.count is None:
            return []
        return indices_inside(name(self.indices), self.count, self.layer)

    def emit(self, name: Name) -> list[str]:
        """Return lines for the running value, then a call."""
        indices, out = name(self.indices), name(self.out)
        lines = []
        if self.before is None:
            lines.append(f"{out}.fill(0)")
        elif self.before != self.out:
            lines.append(f"copyto({out}, {name(self.before)})")
        shard, _ = _shard(self.first, self.out.name, self.indices, name)
        call = f"{name(self.weight)}, {indices}, {out}, {shard}, {name(self.scratch[2])}"
        return [*lines, f"embedding.lookup_part({call})"]


@dataclass(frozen=True, kw_only=True)
class LookupPartBackward(LookupBackward):
    """Lookup gradient of a shard, from the indices within it."""

    first: int

    @property
    def scratch(self) -> tuple[Array, ...]:
        stem = self.grad.name
        return *self._sorting, _places(stem, self.indices), _inside(stem, self.indices)

    def prepare(self, name: Name) -> list[str]:
        """Bind the scatter's struct and the shard."""
        return [*super().prepare(name), _shard(self.first, self.grad.name, self.indices, name)[1]]

    def emit(self, name: Name) -> list[str]:
        arrays = ", ".join(map(name, (self.grad, self.indices, self.out)))
        shard, _ = _shard(self.first, self.grad.name, self.indices, name)
        structs = f"{self._scatter(name)}, {shard}"
        return [f"embedding.add_up_part({arrays}, {structs}, {self.padding})"]


@dataclass(frozen=True)
class LogSumExpPart(LoopKernel):
    """Running log(sum(exp)) of each row over the shards so far, and the label's logit.

    Shapes: logits [N, C], labels [N], before sums [N], picked [N] -> sums [N], picked [N]
    """

    logits: Array
    labels: Array
    before: tuple[Array, ...]
    sums: Array
    picked: Array
    first: int

    kind = "softmax_cross_entropy"

    @property
    def reads(self) -> tuple[Array, ...]:
        return self.logits, self.labels, *self.before

    @property
    def writes(self) -> tuple[Array, ...]:
        return self.sums, self.picked

    @cached_property
    def loop(self) -> KernelLoop:
        reads = {"logits": self.logits, "labels": _places(self.sums.name, self.labels)}
        writes = {"sums": column_of(self._own_sums), "picked": column_of(self._own_picked)}
        return formula_loop(f"{self.sums.name}/part", reads, writes, self.formula)

    def formula(self, old: Values) -> Values:
        """Return the formula of the shard alone."""
        x = old["logits"]
        top = x.largest()
        sums = (x - top).exp().total().log() + top
        return {"sums": sums, "picked": x.pick(old["labels"])}

    @property
    def scratch(self) -> tuple[Array, ...]:
        stem = self.sums.name
        own = (self._own_sums,) if self.before else ()
        places = _places(stem, self.labels), _inside(stem, self.labels)
        return *places, *own, self._own_picked, *self.loop.scratch

    def emit(self, name: Name) -> list[str]:
        """Return the positions of the labels, the loop over rows, and the merge with earlier
        shards.
        """
        stem = self.sums.name
        places, inside = name(_places(stem, self.labels)), name(_inside(stem, self.labels))
        sums, picked = name(self.sums), name(self.picked)
        lines = [
            f"subtract({name(self.labels)}, {self.first}, out={places})",
            f"less({places}.view('uint64'), {self.logits.shape[1]}, out={inside})",
            *self.loop.emit(name),
        ]
        if self.before:
            before, picked_before = map(name, self.before)
            lines.append(f"np.logaddexp({before}, {name(self._own_sums)}, out={sums})")
            lines.append(f"copyto({picked}, {picked_before})")
        else:
            lines.append(f"{picked}.fill(0)")
        return [*lines, f"copyto({picked}, {name(self._own_picked)}, where={inside})"]

    @property
    def _own_sums(self) -> Array:
        return self._like("own_sums") if self.before else self.sums

    @property
    def _own_picked(self) -> Array:
        return self._like("own_picked")

    def _like(self, what: str) -> Array:
        return Array(f"{self.sums.name}/{what}", self.sums.shape, self.sums.dtype)


@dataclass(frozen=True)
class LossOfSums(CrossEntropyForward):
    """Cross entropy from existing log(sum(exp)) and label logits.

    Shapes: sums, picked [N] -> losses [N, 1]
    """

    sums: Array
    picked: Array

    @property
    def saved(self) -> dict[str, Array]:
        """Arrays that backward reads and that exist already."""
        return {}

    def formula(self, old: Values) -> Values:
        return {"losses": old["sums"] - old["picked"]}

    @property
    def of_rows(self) -> dict[str, Array]:
        return {"sums": column_of(self.sums), "picked": column_of(self.picked)}


@dataclass(frozen=True)
class LossPartBackward(LoopKernel):
    """gradient = (exp(logits - sums) - 1 at the label) scale, zero in rows that do not count.

    padding: rows per sample, if padding rows are ignored.

    Shapes: logits [N, C], sums, labels [N], scale [] -> gradient [N, C], usually in place of the
    logits
    """

    logits: Array
    sums: Array
    labels: Array
    scale: Array | str
    gradient: Array
    first: int
    ignore_index: int
    padding: int | None

    kind = "softmax_cross_entropy"
    phase = Phase.BACKWARD

    @property
    def reads(self) -> tuple[Array, ...]:
        scale = () if isinstance(self.scale, str) else (self.scale,)
        return self.logits, self.sums, self.labels, *scale

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.gradient,)

    @cached_property
    def loop(self) -> KernelLoop:
        scale = {} if isinstance(self.scale, str) else {"scale": self.scale}
        own = {"places": _places(self._stem, self.labels), "ignored": self._ignored}
        reads = {"logits": self.logits, "sums": column_of(self.sums), **own, **scale}
        return formula_loop(self._stem, reads, {"gradient": self.gradient}, self.formula)

    def formula(self, old: Values) -> Values:
        scale = self.scale if isinstance(self.scale, str) else old["scale"]
        softmax = (old["logits"] - old["sums"]).exp()
        return {"gradient": softmax.of_label(1, old["places"], old["ignored"], scale)}

    @property
    def scratch(self) -> tuple[Array, ...]:
        return _places(self._stem, self.labels), self._ignored, *self.loop.scratch

    def emit(self, name: Name) -> list[str]:
        """Return the positions of the labels, rows that do not count, and the loop over rows."""
        labels, ignored = name(self.labels), name(self._ignored)
        lines = [
            f"subtract({labels}, {self.first}, out={name(_places(self._stem, self.labels))})",
            f"equal({labels}, {self.ignore_index}, out={ignored})",
        ]
        if self.padding is not None:
            lines.append(f"{ignored}[{first_of_padding(self.padding)}:] = True")
        return [*lines, *self.loop.emit(name)]

    @property
    def _stem(self) -> str:
        return f"{self.gradient.name}/backward"

    @property
    def _ignored(self) -> Array:
        return Array(f"{self._stem}/ignored", self.labels.shape, "bool")


def column_of(array: Array) -> Array:
    """View a number per row as a column, for loops: [N] -> [N, 1]."""
    found = array.reshaped((*array.shape, 1))
    assert found is not None, "a view exists for any strides"
    return found


def match_lookup(operation: Operation, graph: Graph) -> Kernel:
    assert isinstance(operation, EmbeddingPartOp)
    graph.take(operation)
    weight = graph.array(operation.weight)
    out = rows_of(graph.array(operation.out), weight.shape[1:])
    before = [rows_of(graph.array(each), weight.shape[1:]) for each in operation.before]
    is_checked = source_of_labels(operation.indices) is not None
    return LookupPart(
        graph.layer_of(operation),
        weight,
        rows_of(graph.array(operation.indices), ()),
        before[0] if before else None,
        out,
        operation.first.value.data,
        None if is_checked else operation.num_weights.value.data,
    )


def match_lookup_backward(operation: Operation, graph: Graph) -> Kernel:
    assert isinstance(operation, EmbeddingPartBackwardOp)
    graph.take(operation)
    out = graph.array(operation.out)
    return LookupPartBackward(
        graph.layer_of(operation),
        rows_of(graph.array(operation.grad), out.shape[1:]),
        rows_of(graph.array(operation.indices), ()),
        out,
        operation.padding_idx.value.data,
        first=operation.first.value.data,
    )


def match_sums(operation: Operation, graph: Graph) -> Kernel:
    assert isinstance(operation, LogSumExpPartOp)
    graph.take(operation)
    return LogSumExpPart(
        graph.layer_of(operation),
        graph.array(operation.x),
        labels_of(operation, graph)[0],
        tuple(map(graph.array, operation.before)),
        graph.array(operation.sums),
        graph.array(operation.picked),
        operation.first.value.data,
    )


def match_loss(operation: Operation, graph: Graph) -> tuple[Kernel, ...]:
    assert isinstance(operation, NllLossOfSumsOp)
    labels, padding = labels_of(operation, graph)
    sums, layer = graph.array(operation.sums), graph.layer_of(operation)
    shape = prod(sums.shape), operation.classes.value.data
    stem = f"{sums.name}/loss"
    parts = LossOperands(
        Array(f"{stem}/logits", shape, sums.dtype),
        labels,
        operation.ignore_index.value.data,
        0.0,
        padding,
        source_of_labels(operation.labels) is not None,
        layer,
        stem,
    )
    losses = LossOfSums(layer, parts, sums, graph.array(operation.picked))
    return losses, loss_sum(operation, parts, graph)


def match_loss_backward(operation: Operation, graph: Graph) -> Kernel:
    assert isinstance(operation, NllLossPartBackwardOp)
    graph.take(operation)
    labels, padding = labels_of(operation, graph)
    return LossPartBackward(
        graph.layer_of(operation),
        graph.array(operation.x),
        graph.array(operation.sums),
        labels,
        graph.number(operation.grad) or graph.array(operation.grad),
        graph.array(operation.out),
        operation.first.value.data,
        operation.ignore_index.value.data,
        padding,
    )


MATCHERS: dict[str, Matcher] = {
    EmbeddingPartOp.name: match_lookup,
    EmbeddingPartBackwardOp.name: match_lookup_backward,
    LogSumExpPartOp.name: match_sums,
    NllLossOfSumsOp.name: match_loss,
    NllLossPartBackwardOp.name: match_loss_backward,
}
