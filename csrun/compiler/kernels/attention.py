"""Attention kernels, forward and backward."""

from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation

from csrun.cirh.ops.attention import AttentionBackwardOp, AttentionOp
from csrun.cirh.ops.random import DropoutMaskOp
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import FunctionKernel, Kernel, Matcher, Name, Phase, bound_struct
from csrun.kernels.attention import BLOCK
from csrun.kernels.random import blocks_of

#: Fields of `AttentionGradients` besides those saved by forward: results, then scratch.
GRADIENTS = ("query", "key", "value", "slopes", "key_part", "value_part")


@dataclass(frozen=True)
class WeightDropout:
    """Dropout of weights with probability `rate`; `stream` distinguishes the masks of a model."""

    rate: float
    stream: int


@dataclass(frozen=True)
class Attention(FunctionKernel):
    """softmax(scale query key^T + mask) value, or the gradients of query, key and value.

    operands: query, key, value; in the backward pass preceded by the result's gradient, and
        followed by the saved arrays.

    Shapes: query [B, H, T, E], key [B, H, S, E], value [B, H, S, F], mask [B, H, T, S]
    """

    mask: Array | None
    causal: bool
    scale: float
    dropout: WeightDropout | None
    phase: Phase

    kind = "attention"

    @property
    def reads(self) -> tuple[Array, ...]:
        return self.operands if self.mask is None else (*self.operands, self.mask)

    @property
    def scratch(self) -> tuple[Array, ...]:
        return (*self._scratch, *self._back, *self._drawn)

    @property
    def flops(self) -> int:
        """Two matrix products forward, five backward; half of them if attention is causal."""
        query, key, value = self._projections
        scores = prod(query.shape[:3]) * key.shape[2]
        inner = 3 * query.shape[3] + 2 * value.shape[3] if self._back else 0
        inner = inner or query.shape[3] + value.shape[3]
        return 2 * scores * inner // (2 if self.causal else 1)

    @property
    def _projections(self) -> tuple[Array, ...]:
        return self.operands[1:4] if self.phase is Phase.BACKWARD else self.operands[:3]

    @property
    def _scratch(self) -> tuple[Array, ...]:
        """Return a block's scaled queries, scores and row sums, and its mask."""
        query, key, _ = self._projections
        rows, masked = self._rows, self.mask is not None and self.mask.dtype == "bool"
        return (
            self.scratch_array("queries", (rows, query.shape[3])),
            self.scratch_array("scores", (rows, key.shape[2])),
            self.scratch_array("rows", (rows, 1)),
            *([self.scratch_array("unseen", (rows, key.shape[2]), "bool")] if masked else []),
        )

    @property
    def _back(self) -> tuple[Array, ...]:
        """Return a block's slopes and gradient contributions, in the backward pass."""
        if self.phase is not Phase.BACKWARD:
            return ()
        _, key, value = self._projections
        return (
            self.scratch_array("slopes", (self._rows, key.shape[2])),
            self.scratch_array("keys", key.shape[2:]),
            self.scratch_array("values", value.shape[2:]),
        )

    @property
    def _drawn(self) -> tuple[Array, ...]:
        """Lines that draw the kept weights of a block."""
        if self.dropout is None:
            return ()
        rows, keys = self._rows, self._projections[1].shape[2]
        words = (3, 2, rows, blocks_of(keys))
        kept = self.scratch_array("kept", (rows, keys), "bool")
        return kept, self.scratch_array("words", words, "uint64")

    @property
    def _rows(self) -> int:
        return min(BLOCK, self._projections[0].shape[2])

    def prepare(self, name: Name) -> list[str]:
        """Bind the structs of arrays, the causal mask and the dropout draw."""
        queries, scores, rows, *unseen = map(name, self._scratch)
        block = {"scale": repr(self.scale), "queries": queries, "scores": scores, "rows": rows}
        lines = ["from csrun.kernels import attention"]
        if self.causal:
            block["later"] = self._later
            lines.append(f"{self._later} = attention.later({self._rows}, '{self._dtype}')")
        if unseen:
            block["unseen"] = unseen[0]
        out, logsumexp = map(name, self._saved)
        saved = {"out": out, "logsumexp": logsumexp, "block": self._struct(name, "block")}
        lines += [
            bound_struct(self._struct(name, "block"), "attention.ScoreBlock", block),
            bound_struct(self._struct(name, "results"), "attention.AttentionResults", saved),
        ]
        if self.phase is Phase.BACKWARD:
            arrays = zip(GRADIENTS, map(name, (*self.results, *self._back)), strict=True)
            own = {"saved": self._struct(name, "results"), **dict(arrays)}
            variable = self._struct(name, "gradients")
            lines.append(bound_struct(variable, "attention.AttentionGradients", own))
        if self.dropout is not None:
            kept, words = map(name, self._drawn)
            numbers = f"{self.dropout.rate!r}, {self.dropout.stream}"
            lines += [
                "keys = random.round_keys(runtime.seed)",
                f"{self._struct(name, 'draw')} = random.RunDraw({kept}, {words}, {numbers}, keys)",
            ]
        return lines

    def emit(self, name: Name) -> list[str]:
        """Return one call."""
        forward = self.phase is Phase.FORWARD
        function, what = ("attend", "results") if forward else ("attend_backward", "gradients")
        mask = "None" if self.mask is None else name(self.mask)
        drawn = [] if self.dropout is None else [f"{self._struct(name, 'draw')}.of(step)"]
        operands = self.operands if forward else self.operands[:4]
        arguments = [*map(name, operands), mask, self._struct(name, what), *drawn]
        return [f"attention.{function}({', '.join(arguments)})"]

    def _struct(self, name: Name, what: str) -> str:
        return f"{name(self.results[0])}_{what}"

    @property
    def _saved(self) -> tuple[Array, ...]:
        """Return the result and its logsumexp."""
        return self.operands[4:] if self.phase is Phase.BACKWARD else self.results

    @property
    def _dtype(self) -> str:
        return self.results[0].dtype

    @property
    def _later(self) -> str:
        return f"later_{self._rows}"


def match_attention(operation: Operation, graph: Graph) -> Kernel:
    """Match the single operator, which was fused before differentiation."""
    assert isinstance(operation, AttentionOp | AttentionBackwardOp)
    graph.take(operation)
    count = len(operation.operands) - len(operation.mask)
    masks, dropout = list(operation.mask), None
    if operation.dropout is not None:
        drawn = masks.pop().owner
        assert isinstance(drawn, DropoutMaskOp), "dropout uses a drawn mask"
        dropout = WeightDropout(operation.dropout.value.data, drawn.stream.value.data)
    return Attention(
        graph.layer_of(operation),
        tuple(map(graph.array, operation.operands[:count])),
        tuple(map(graph.array, operation.results)),
        graph.array(masks[0]) if masks else None,
        bool(operation.is_causal.value.data),
        float(operation.scale.value.data),
        dropout,
        Phase.BACKWARD if isinstance(operation, AttentionBackwardOp) else Phase.FORWARD,
    )


MATCHERS: dict[str, Matcher] = dict.fromkeys(
    (AttentionOp.name, AttentionBackwardOp.name), match_attention
)
