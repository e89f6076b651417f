"""Softmax cross entropy with integer labels, forward and backward, fused.

Source: log-sum-exp with the row's maximum taken out, as in any text; own choice of calls: rows are
summed by a product with ones, and their maxima taken of the transpose, both of which are faster
than NumPy's reductions along a short last axis
"""

from dataclasses import dataclass
from functools import cached_property

from csrun.compiler.array import Array
from csrun.compiler.kernels.base import Kernel, Name, Phase
from csrun.compiler.kernels.batch import first_of_padding


@dataclass(frozen=True)
class Parts:
    """The arrays that forward leaves for backward; `stem` is the loss's in their names.

    padding: rows that a sample has, where rows of padding are to be ignored. is_checked: whether
    somebody has seen that the labels are classes or `ignore_index`.

    Shapes: logits [N, C], labels [N] -> exponentials [N, C], totals [N, 1], ignored [N] bool
    """

    logits: Array
    labels: Array
    ignore_index: int
    smoothing: float
    padding: int | None
    is_checked: bool
    layer: str
    stem: str

    @cached_property
    def exponentials(self) -> Array:
        """exp(logits - row maximum)."""
        return Array(f"{self.stem}/exponentials", self.logits.shape, self.logits.dtype)

    @cached_property
    def totals(self) -> Array:
        """Sums of the exponentials of each row."""
        return Array(f"{self.stem}/totals", (self.logits.shape[0], 1), self.logits.dtype)

    def places(self, stem: str) -> Array:
        """Scratch for the class of each row, as an index."""
        return Array(f"{stem}/places", self.logits.shape[:1], "int64")

    @property
    def numbers(self) -> str:
        """The variable of the rows' numbers."""
        return f"rows_{self.logits.shape[0]}"

    @property
    def imports(self) -> list[str]:
        """What calls of csrun.executable.cross_entropy find bound."""
        made = f"{self.numbers} = np.arange({self.logits.shape[0]})"
        return ["from csrun.executable import cross_entropy", made]

    @cached_property
    def ignored(self) -> Array:
        """Rows that do not count."""
        return Array(f"{self.stem}/ignored", self.logits.shape[:1], "bool")


@dataclass(frozen=True)
class CrossEntropyForward(Kernel):
    """loss = sum over rows of log(sum(exp(logits))) - logits[label]; mean = loss / count.

    Without a reader of its own the mean is None. A label that is no class, where nobody has seen
    that before, makes the loss NaN.

    Shapes: logits [N, C], labels [N], count [] -> loss float64[1], mean []
    """

    parts: Parts
    loss: Array
    mean: Array | None
    count: Array | str

    kind = "softmax_cross_entropy"

    @property
    def reads(self) -> tuple[Array, ...]:
        count = () if self.mean is None or isinstance(self.count, str) else (self.count,)
        return self.parts.logits, self.parts.labels, *count

    @property
    def writes(self) -> tuple[Array, ...]:
        """The loss, and what backward needs."""
        mean = () if self.mean is None else (self.mean,)
        return self.loss, self.parts.exponentials, self.parts.totals, self.parts.ignored, *mean

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Shifted and transposed logits, row maxima and losses, the labels' places and logits.

        And, for labels that nobody has seen, which are no classes.
        """
        logits, stem = self.parts.logits, self.parts.stem
        rows = logits.shape[:1]
        bad = () if self.parts.is_checked else (Array(f"{stem}/bad", rows, "bool"),)
        return (
            Array(f"{stem}/shifted", logits.shape, logits.dtype),
            Array(f"{stem}/transposed", logits.shape[::-1], logits.dtype),
            Array(f"{stem}/tops", (*rows, 1), logits.dtype),
            Array(f"{stem}/row_losses", rows, logits.dtype),
            self.parts.places(stem),
            Array(f"{stem}/picked", rows, logits.dtype),
            *bad,
        )

    @property
    def flops(self) -> int:
        """Maximum, subtraction, exponential, sum: four for each logit."""
        rows, columns = self.parts.logits.shape
        return 4 * rows * columns

    def prepare(self, name: Name) -> list[str]:
        """Flat views, the start of each row, and ones."""
        rows, columns = self.parts.logits.shape
        dtype = self.parts.logits.dtype
        totals, shifted, tops = (
            name(a) for a in (self.parts.totals, self.scratch[0], self.scratch[2])
        )
        return [
            f"{totals}_flat = {totals}.reshape(-1)",
            f"{shifted}_flat = {shifted}.reshape(-1)",
            f"{tops}_flat = {tops}.reshape(-1)",
            f"row_starts_{rows}_{columns} = np.arange(0, {rows * columns}, {columns})",
            f"ones_{columns}_1 = np.ones(({columns}, 1), '{dtype}')",
        ]

    def emit(self, name: Name) -> list[str]:
        """A dozen calls on [N, C] and [N], and one for the mean."""
        parts = self.parts
        rows, columns = parts.logits.shape
        shifted, transposed, tops, losses, places, picked, *_ = (name(a) for a in self.scratch)
        logits, labels = name(parts.logits), name(parts.labels)
        exponentials, totals = name(parts.exponentials), name(parts.totals)
        return [
            f"copyto({transposed}, {logits}.T)",
            f"maximum_reduce({transposed}, axis=0, out={tops}_flat)",
            f"subtract({logits}, {tops}, out={shifted})",
            f"exp({shifted}, out={exponentials})",
            f"matmul({exponentials}, ones_{columns}_1, out={totals})",
            f"log({totals}_flat, out={losses})",
            f"add(row_starts_{rows}_{columns}, {labels}, out={places})",
            f'{shifted}_flat.take({places}, out={picked}, mode="clip")',
            *self._smooth(shifted, tops, picked, losses),
            f"subtract({losses}, {picked}, out={losses})",
            *self.of_rows(losses, name),
        ]

    def _smooth(self, shifted: str, tops: str, picked: str, losses: str) -> list[str]:
        """Of the loss the share that is of all classes: the mean of the row."""
        share, columns = self.parts.smoothing, self.parts.logits.shape[1]
        if not share:
            return []
        return [
            f"matmul({shifted}, ones_{columns}_1, out={tops})",
            f"multiply({tops}_flat, {share / columns!r}, out={tops}_flat)",
            f"subtract({losses}, {tops}_flat, out={losses})",
            f"multiply({picked}, {1 - share!r}, out={picked})",
        ]

    def of_rows(self, losses: str, name: Name) -> list[str]:
        """The sum of the losses of the rows that count, and their mean."""
        parts, ignored = self.parts, name(self.parts.ignored)
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
        """NaN for what is no class: as a number without sign a negative label is large, too."""
        parts = self.parts
        if parts.is_checked:
            return []
        bad = name(self.scratch[-1])
        labels, classes = name(parts.labels), parts.logits.shape[1]
        return [
            f"greater_equal({labels}.view('u{parts.labels.dtype}'), {classes}, out={bad})",
            f"copyto({losses}, np.nan, where={bad})",
        ]


@dataclass(frozen=True)
class CrossEntropyBackward(Kernel):
    """gradient = (softmax(logits) - one_hot(labels)) * scale, zero in rows that do not count.

    `scale` is the gradient of the sum: of a loss that is the mean, 1 / count.

    Shapes: exponentials [N, C], totals [N, 1], labels [N], scale [] -> gradient [N, C]
    """

    parts: Parts
    scale: Array | str
    gradient: Array

    kind = "softmax_cross_entropy"
    phase = Phase.BACKWARD

    @property
    def reads(self) -> tuple[Array, ...]:
        """What forward left, and the labels."""
        parts = self.parts
        scale = () if isinstance(self.scale, str) else (self.scale,)
        return parts.exponentials, parts.totals, parts.ignored, parts.labels, *scale

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.gradient,)

    @property
    def scratch(self) -> tuple[Array, ...]:
        """One-hot labels, and their share of the loss if that is not all of it."""
        stem, like = self.parts.stem, self.gradient
        hot = Array(f"{stem}/hot", like.shape, "bool")
        shares = Array(f"{stem}/shares", like.shape, like.dtype)
        return (hot, shares) if self.parts.smoothing else (hot,)

    @property
    def flops(self) -> int:
        rows, columns = self.gradient.shape
        return 3 * rows * columns  # a division, a subtraction and a product for each

    def prepare(self, name: Name) -> list[str]:
        """The class of each column."""
        columns = self.gradient.shape[1]
        return [f"columns_{columns} = np.arange({columns})"]

    def emit(self, name: Name) -> list[str]:
        """Four calls on [N, C]; a row that does not count is zero whatever its logits are."""
        parts, gradient = self.parts, name(self.gradient)
        hot, ignored = name(self.scratch[0]), name(parts.ignored)
        labels = name(parts.labels)
        scale = self.scale if isinstance(self.scale, str) else name(self.scale)
        return [
            f"divide({name(parts.exponentials)}, {name(parts.totals)}, out={gradient})",
            f"equal({labels}[:, None], columns_{self.gradient.shape[1]}, out={hot})",
            *self._without_labels(gradient, hot, name),
            f"multiply({gradient}, {scale}, out={gradient})",
            f"if {ignored}.any():",
            f"    {gradient}[{ignored}] = 0",
        ]

    def _without_labels(self, gradient: str, hot: str, name: Name) -> list[str]:
        share, columns = self.parts.smoothing, self.gradient.shape[1]
        if not share:
            return [f"subtract({gradient}, {hot}, out={gradient})"]
        shares = name(self.scratch[1])
        return [
            f"subtract({gradient}, {share / columns!r}, out={gradient})",
            f"multiply({hot}, {1 - share!r}, out={shares})",
            f"subtract({gradient}, {shares}, out={gradient})",
        ]


@dataclass(frozen=True)
class NllBackward(Kernel):
    """gradient = -scale at each label, by the shares of the loss, 0 in rows that do not count.

    That of the log-probabilities, where they have another gradient besides.

    Shapes: labels [N], ignored [N], scale [] -> gradient [N, C]
    """

    parts: Parts
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
        return (self.parts.places(self.gradient.name),)

    def prepare(self, name: Name) -> list[str]:
        return self.parts.imports

    def emit(self, name: Name) -> list[str]:
        """One call."""
        parts = self.parts
        scale = self.scale if isinstance(self.scale, str) else name(self.scale)
        arrays = ", ".join(map(name, (parts.labels, parts.ignored)))
        others = f"{name(self.gradient)}, {parts.numbers}, {name(*self.scratch)}"
        return [f"cross_entropy.label_gradients({arrays}, {scale}, {others}, {parts.smoothing!r})"]
