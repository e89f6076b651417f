"""Softmax cross entropy with integer labels, forward and backward, from `lair` formulas.

Source: standard log-sum-exp with the row's maximum subtracted
"""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

from csrun.compiler.graph.array import Array
from csrun.compiler.graph.kernel import Kernel, Name, Phase
from csrun.compiler.kernels.padding import first_of_padding
from csrun.compiler.lair.formula import FormulaValue, Values, formula_loop
from csrun.compiler.lair.loop import KernelLoop
from csrun.compiler.lair.loop_kernel import LoopKernel


@dataclass(frozen=True)
class LossOperands:
    """Operands of a loss, and the arrays that forward saves; `stem` is the loss's name in theirs.

    padding: rows per sample, if padding rows are ignored.
    is_checked: whether all labels are known to be classes or `ignore_index`.

    Shapes: logits [N, C], labels [N] -> ignored [N] bool
    """

    logits: Array
    labels: Array
    ignore_index: int
    smoothing: float
    padding: int | None
    is_checked: bool
    layer: str
    stem: str

    @property
    def rows(self) -> int:
        return self.logits.shape[0]

    @property
    def classes(self) -> int:
        return self.logits.shape[1]

    def like(self, what: str, columns: int) -> Array:
        """Return an array of the loss with this many numbers per row."""
        return Array(f"{self.stem}/{what}", (self.rows, columns), self.logits.dtype)

    @cached_property
    def losses(self) -> Array:
        """Return the losses of the rows."""
        return self.like("row_losses", 1)

    @cached_property
    def ignored(self) -> Array:
        """Return the rows that do not count."""
        return Array(f"{self.stem}/ignored", (self.rows,), "bool")


@dataclass(frozen=True)
class CrossEntropyForward(LoopKernel):
    """losses = log(sum(exp(logits))) - logits[label], of rows that count and others.

    Shapes: logits [N, C], labels [N] -> losses [N, 1]
    """

    parts: LossOperands

    kind = "softmax_cross_entropy"

    @abstractmethod
    def formula(self, old: Values) -> Values:
        """Return the `losses` of the rows, and the arrays for backward, from `logits` and
        `labels`.
        """

    @property
    @abstractmethod
    def saved(self) -> dict[str, Array]:
        """Arrays saved for backward."""

    @cached_property
    def loop(self) -> KernelLoop:
        writes = {**self.saved, "losses": self.parts.losses}
        return formula_loop(f"{self.parts.stem}/forward", self.of_rows, writes, self.formula)

    @property
    def of_rows(self) -> dict[str, Array]:
        """Return the arrays that the formula reads."""
        return {"logits": self.parts.logits, "labels": self.parts.labels}

    @property
    def reads(self) -> tuple[Array, ...]:
        return tuple(self.of_rows.values())

    @property
    def writes(self) -> tuple[Array, ...]:
        """The losses of the rows, and the arrays for backward."""
        return self.parts.losses, *self.saved.values()

    @property
    def scratch(self) -> tuple[Array, ...]:
        return self.loop.scratch


@dataclass(frozen=True)
class LossSum(Kernel):
    """loss = sum of the losses of rows that count; mean = loss / count, if something reads it.

    The sum is NumPy's. The losses of rows that do not count become 0. An invalid label, if labels
    are not checked before, makes the loss NaN.

    Shapes: losses [N, 1], labels [N], count [] -> ignored [N], loss float64[1], mean []
    """

    parts: LossOperands
    loss: Array
    mean: Array | None
    count: Array | str

    kind = "loss_sum"

    @property
    def reads(self) -> tuple[Array, ...]:
        count = () if self.mean is None or isinstance(self.count, str) else (self.count,)
        return self.parts.losses, self.parts.labels, *count

    @property
    def writes(self) -> tuple[Array, ...]:
        """The loss, the rows that do not count, and the mean."""
        return self.loss, self.parts.ignored, *(() if self.mean is None else (self.mean,))

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Return a mask of invalid labels, unless labels are checked."""
        return () if self.parts.is_checked else (self._bad,)

    @property
    def of_rows(self) -> Array:
        """The losses as one axis: [N]."""
        found = self.parts.losses.reshaped((self.parts.rows,))
        assert found is not None, "it is contiguous"
        return found

    def emit(self, name: Name) -> list[str]:
        parts, ignored = self.parts, name(self.parts.ignored)
        losses = name(self.of_rows)
        lines = [
            *self._seen(losses, name),
            f"equal({name(parts.labels)}, {parts.ignore_index}, out={ignored})",
        ]
        if parts.padding is not None:
            lines.append(f"{ignored}[{first_of_padding(parts.padding)}:] = True")
        lines += [
            f"copyto({losses}, 0, where={ignored})",
            f"{name(self.loss)}[0] = add_reduce({losses})",
        ]
        if self.mean is not None:
            count = self.count if isinstance(self.count, str) else name(self.count)
            lines.append(f"divide({name(self.loss)}[0], {count}, out={name(self.mean)})")
        return lines

    def _seen(self, losses: str, name: Name) -> list[str]:
        """Return the lines that make invalid labels NaN: as unsigned numbers, negative labels are
        large, too.
        """
        parts = self.parts
        if parts.is_checked:
            return []
        bad = name(self._bad)
        labels, classes = name(parts.labels), parts.classes
        return [
            f"greater_equal({labels}.view('u{parts.labels.dtype}'), {classes}, out={bad})",
            f"copyto({losses}, np.nan, where={bad})",
        ]

    @property
    def _bad(self) -> Array:
        return Array(f"{self.parts.stem}/bad", (self.parts.rows,), "bool")


@dataclass(frozen=True)
class CrossEntropyBackward(LoopKernel):
    """gradient = (softmax(logits) - one_hot(labels)) * scale, zero in rows that do not count.

    `scale` is the gradient of the sum: 1 / count if the loss is the mean. A row that does not count
        is zero for any logits.

    Shapes: logits [N, C], labels [N], scale [] -> gradient [N, C]
    """

    parts: LossOperands
    scale: Array | str
    gradient: Array

    kind = "softmax_cross_entropy"
    phase = Phase.BACKWARD

    @property
    @abstractmethod
    def saved(self) -> dict[str, Array]:
        """Arrays saved by forward that it reads, with or without the logits."""

    @abstractmethod
    def softmax(self, old: Values) -> FormulaValue:
        """Return the softmax, from the saved arrays."""

    def formula(self, old: Values) -> Values:
        """Return the gradient."""
        share, found = self.parts.smoothing, self.softmax(old)
        found = found - share / self.parts.classes if share else found
        scale = self.scale if isinstance(self.scale, str) else old["scale"]
        return {"gradient": found.of_label(1 - share, old["labels"], old["ignored"], scale)}

    @cached_property
    def loop(self) -> KernelLoop:
        reads, writes = self._arrays, {"gradient": self.gradient}
        return formula_loop(f"{self.gradient.name}/backward", reads, writes, self.formula)

    @property
    def _arrays(self) -> dict[str, Array]:
        scale = {} if isinstance(self.scale, str) else {"scale": self.scale}
        return {**self.saved, "ignored": self.parts.ignored, "labels": self.parts.labels, **scale}

    @property
    def reads(self) -> tuple[Array, ...]:
        """Arrays saved by forward, and the labels."""
        return tuple(self._arrays.values())

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.gradient,)

    @property
    def scratch(self) -> tuple[Array, ...]:
        return self.loop.scratch


@dataclass(frozen=True)
class NarrowForward(CrossEntropyForward):
    """Forward for few classes: saves the exponentials of each row, and their sum."""

    @property
    def saved(self) -> dict[str, Array]:
        return narrow(self.parts)

    def formula(self, old: Values) -> Values:
        share, labels = self.parts.smoothing, old["labels"]
        shifted = old["logits"] - old["logits"].largest()
        exponentials = shifted.exp()
        totals = exponentials.total()
        losses, picked = totals.log(), shifted.pick(labels)
        if share:  # with label smoothing, all classes contribute the mean of the row
            losses = losses - shifted.total() * (share / self.parts.classes)
            picked = picked * (1 - share)
        return {"exponentials": exponentials, "totals": totals, "losses": losses - picked}


@dataclass(frozen=True)
class NarrowBackward(CrossEntropyBackward):
    """Backward for few classes, from the saved exponentials."""

    @property
    def saved(self) -> dict[str, Array]:
        return narrow(self.parts)

    def softmax(self, old: Values) -> FormulaValue:
        return old["exponentials"] / old["totals"]


@dataclass(frozen=True)
class WideForward(CrossEntropyForward):
    """Forward for many classes: only the logits and one gradient are [N, C].

    It saves the logarithm of each row's sum; backward recomputes the exponentials.
    """

    @property
    def saved(self) -> dict[str, Array]:
        return {"sums": self.parts.like("sums", 1)}

    def formula(self, old: Values) -> Values:
        share, x = self.parts.smoothing, old["logits"]
        top = x.largest()
        sums = (x - top).exp().total().log() + top
        picked = x.pick(old["labels"])
        if share:
            picked = picked * (1 - share) + x.total() * (share / self.parts.classes)
        return {"sums": sums, "losses": sums - picked}


@dataclass(frozen=True)
class WideBackward(CrossEntropyBackward):
    """Backward for many classes, from the logits."""

    @property
    def saved(self) -> dict[str, Array]:
        return {"logits": self.parts.logits, "sums": self.parts.like("sums", 1)}

    def softmax(self, old: Values) -> FormulaValue:
        return (old["logits"] - old["sums"]).exp()


def narrow(parts: LossOperands) -> dict[str, Array]:
    """Return exp(logits - row maximum), and its row sums."""
    exponentials = parts.like("exponentials", parts.classes)
    return {"exponentials": exponentials, "totals": parts.like("totals", 1)}


@dataclass(frozen=True)
class NllBackward(Kernel):
    """gradient = -scale at each label, weighted by the smoothing, 0 in rows that do not count.

    It is the gradient of the log-probabilities, if those have another gradient, too.

    Shapes: labels [N], ignored [N], scale [] -> gradient [N, C]
    """

    parts: LossOperands
    scale: Array | str
    gradient: Array

    kind = "nll_loss"
    phase = Phase.BACKWARD

    @property
    def reads(self) -> tuple[Array, ...]:
        scale = () if isinstance(self.scale, str) else (self.scale,)
        return self.parts.labels, self.parts.ignored, *scale

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.gradient,)

    @property
    def scratch(self) -> tuple[Array, ...]:
        return (Array(f"{self.gradient.name}/places", (self.parts.rows,), "int64"),)

    @property
    def _numbers(self) -> str:
        """Return the variable of the row indices."""
        return f"rows_{self.parts.rows}"

    def prepare(self, name: Name) -> list[str]:
        made = f"{self._numbers} = np.arange({self.parts.rows})"
        return ["from csrun.kernels import cross_entropy", made]

    def emit(self, name: Name) -> list[str]:
        """Return one call."""
        parts = self.parts
        scale = self.scale if isinstance(self.scale, str) else name(self.scale)
        arrays = ", ".join(map(name, (parts.labels, parts.ignored)))
        others = f"{name(self.gradient)}, {self._numbers}, {name(*self.scratch)}"
        return [f"cross_entropy.label_gradients({arrays}, {scale}, {others}, {parts.smoothing!r})"]
