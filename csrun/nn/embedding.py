"""Embedding tables, also used as a tied output layer."""

from math import prod

from csrun.cirh.ops.embedding import NO_PADDING, EmbeddingOp
from csrun.cirh.ops.products import MmOp
from csrun.cirh.ops.shape import TransposeOp
from csrun.cirh.types import text_of, type_of
from csrun.nn.errors import ShapeError, TraceError, user_line
from csrun.nn.initializers import Initializer, normal
from csrun.nn.shapes import view
from csrun.nn.tensor import Tensor

SMALL = normal(0.02)


class Embedding:
    """Lookup of each index in a table of `input_dim` vectors of `output_dim` values.

    The parameter `<name>/embeddings` [input_dim, output_dim] is created at the first call and
    shared by later calls and `attend`. Lookups of `padding_idx` contribute no gradient.

    Raises: TraceError for sizes below 1, or a padding_idx outside the table
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        padding_idx: int | None = None,
        embeddings_initializer: Initializer = SMALL,
        name: str | None = None,
    ) -> None:
        self.input_dim = _require_positive("Embedding", "input_dim", input_dim)
        self.output_dim = _require_positive("Embedding", "output_dim", output_dim)
        if padding_idx is not None and not 0 <= padding_idx < input_dim:
            raise TraceError(
                f"{user_line()}: Embedding: padding_idx must be in 0..{input_dim - 1}, "
                f"got {padding_idx!r}"
            )
        self.name = name
        self._padding = NO_PADDING if padding_idx is None else padding_idx
        self._initializer = embeddings_initializer
        self._table: Tensor | None = None

    @property
    def embeddings(self) -> Tensor:
        """The table, [input_dim, output_dim].

        Raises: TraceError before the first call
        """
        if self._table is None:
            raise TraceError(
                f"{user_line()}: Embedding: its table does not exist before the first call"
            )
        return self._table

    def __call__(self, indices: Tensor) -> Tensor:
        """Shapes: indices [B, ...], integers in 0..input_dim-1 -> [B, ..., output_dim]

        Raises: ShapeError for indices that are not integers
        """
        tracer = indices.tracer
        with tracer.layer("embedding", self.name if self._table is None else None):
            if self._table is None:
                shape = (self.input_dim, self.output_dim)
                self._table = tracer.parameter("embeddings", shape, self._initializer(shape))
            return tracer.emit(EmbeddingOp, self._table, indices, padding_idx=self._padding)

    def attend(self, x: Tensor) -> Tensor:
        """Product of x with the transposed table: logits over its entries.

        Shapes: x [B, ..., output_dim] -> [B, ..., input_dim]
        Raises: TraceError before the first call; ShapeError for a last axis of another size
        """
        table = self.embeddings
        with x.tracer.layer("attend", None):
            if x.shape[-1:] != (self.output_dim,):
                raise ShapeError(
                    f"{user_line()}: Embedding.attend: the last axis must be {self.output_dim}, "
                    f"got shape {text_of(type_of(x.value))}"
                )
            rows = view(x, (prod(x.shape[:-1]), self.output_dim))
            logits = x.tracer.emit(MmOp, rows, x.tracer.emit(TransposeOp, table))
            return view(logits, (*x.shape[:-1], self.input_dim))


class PositionEmbedding:
    """x plus a trained vector per position.

    The parameter `<name>/embeddings` [input_dim, D] is created at each call.

    Raises: TraceError for input_dim below 1
    """

    def __init__(
        self,
        input_dim: int,
        embeddings_initializer: Initializer = SMALL,
        name: str | None = None,
    ) -> None:
        self.input_dim = _require_positive("PositionEmbedding", "input_dim", input_dim)
        self.name = name
        self._initializer = embeddings_initializer

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: x [B, T, D] -> the same

        Raises: ShapeError for an input of another rank, or a sequence longer than input_dim
        """
        with x.tracer.layer("position_embedding", self.name) as scope:
            if len(x.shape) != 3 or x.shape[1] > self.input_dim:
                raise ShapeError(
                    f"{user_line()}: layer {scope}: the input must be [batch, positions, features] "
                    f"with at most {self.input_dim} positions, got shape "
                    f"{text_of(type_of(x.value))}"
                )
            shape = (self.input_dim, x.shape[2])
            table = x.tracer.parameter("embeddings", shape, self._initializer(shape))
            return x + table[: x.shape[1]]


def _require_positive(layer: str, what: str, size: int) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise TraceError(f"{user_line()}: {layer}: {what} must be a positive integer, got {size!r}")
    return size
