"""Sizes of an attention, and of its blocks."""

from dataclasses import dataclass

from csrun.compiler.emit.llvm.lane_values import LANES, LaneValue
from csrun.compiler.emit.llvm.products.matrices import padded
from csrun.compiler.graph.kernel import Phase
from csrun.compiler.kernels.attention import Attention

ROWS = 48  # queries of a block: whole tiles of products; more are no faster with 256 to 4,096 keys
PART_ROWS = 24  # queries of a causal block, times the keys that they see


@dataclass(frozen=True)
class QueryBlock:
    """Queries of a pair: the first one, their number, and how many keys they see."""

    first: LaneValue
    count: LaneValue
    seen: LaneValue


@dataclass(frozen=True)
class AttentionSizes:
    """Sizes of an attention over pairs of a sample and a head.

    all_keys: including those that causal attention never sees.
    size, value_size: length of a key's and a value's vector.
    """

    samples: int
    heads: int
    queries: int
    all_keys: int
    size: int
    value_size: int
    is_causal: bool

    @classmethod
    def of(cls, kernel: Attention) -> "AttentionSizes":
        """Return the sizes of a kernel."""
        is_backward = kernel.phase is Phase.BACKWARD
        query, key, value = kernel.operands[1:4] if is_backward else kernel.operands[:3]
        samples, heads, queries, size = query.shape
        keys, value_size = key.shape[2], value.shape[3]
        return cls(samples, heads, queries, keys, size, value_size, kernel.causal)

    @property
    def pairs(self) -> int:
        """Number of pairs of a sample and a head."""
        return self.samples * self.heads

    @property
    def keys(self) -> int:
        """Number of keys that any query attends to."""
        return min(self.queries, self.all_keys) if self.is_causal else self.all_keys

    @property
    def rows(self) -> int:
        """Number of queries of a block."""
        return min(ROWS, self.queries)

    @property
    def score_stride(self) -> int:
        """Elements from a row of scores to the next: an odd number of vectors.

        With a power of 2, the elements of a column would map to few cache sets.
        """
        return LANES * (padded(self.keys) // LANES | 1)
