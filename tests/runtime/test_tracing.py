"""Readable names of spans in a trace."""

from types import SimpleNamespace

import pytest

from csrun.runtime.chief.training import tracing
from csrun.runtime.step.trace import SpanKind

PLAN = SimpleNamespace(
    micro_batches=2,
    visits=[
        SimpleNamespace(groups=(0,)),
        SimpleNamespace(groups=(0, 1)),
        SimpleNamespace(groups=()),
    ],
    groups=[SimpleNamespace(layers=("fc_0", "fc_1")), SimpleNamespace(layers=("logits",))],
    marks=("fc_0", ""),
)
NAMES = [
    (SpanKind.COMPUTE, 0, "micro-batch 0, visit 0: fc_0, fc_1"),
    (SpanKind.WEIGHTS, 4, "micro-batch 1, visit 1: fc_0, fc_1, logits"),
    (SpanKind.COMPUTE, 5, "micro-batch 1, visit 2: no weights"),
    (SpanKind.COMPUTE, 6, "minibatches"),
    (SpanKind.COMPUTE, -1, "minibatches"),
    (SpanKind.GRADIENTS, 0, "group 0: fc_0, fc_1"),
    (SpanKind.UPDATE, 1, "group 1: logits"),
    (SpanKind.UPDATE, 2, "step 3"),
    (SpanKind.LAYER, 0, "fc_0"),
    (SpanKind.LAYER, 1, "no layer"),
    (SpanKind.LAYER, 2, "step 3"),
    (SpanKind.LOG, 0, "step 1"),
]


@pytest.mark.parametrize(("kind", "number", "name"), NAMES)
def test_a_span_has_the_name_of_its_layers_or_its_step(
    kind: SpanKind, number: int, name: str
) -> None:
    assert tracing._name(PLAN, kind, number) == name  # type: ignore[arg-type]
