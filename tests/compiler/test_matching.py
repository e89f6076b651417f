"""Operators that cannot be compiled: the error names their layer and the user's line."""

import re
from pathlib import Path

import pytest

from csrun import nn
from csrun.base.mode import RunMode
from csrun.cirh import parse_module, print_module
from csrun.cirh.ops.arithmetic import DivOp, ExpOp
from csrun.cirh.ops.normalization import SoftmaxOp
from csrun.compiler import CompileError, validate_model
from csrun.nn.tracer import Tracer


def halves(features, labels):
    return labels.tracer.emit(DivOp, labels, labels)  # refused


def exponentials_in_a_layer(features, labels):
    with labels.tracer.layer("head", None):
        return labels.tracer.emit(ExpOp, labels)  # refused


def a_softmax_over_samples(features, labels):
    shifted = features + 1.0
    return shifted.tracer.emit(SoftmaxOp, shifted, dim=0)  # refused


MODELS = {
    halves: "layer model: no kernel for cirh.div of int32[4] and int32[4]",
    exponentials_in_a_layer: "layer head: no kernel for cirh.exp of int32[4]",
    a_softmax_over_samples: "layer model: no kernel for cirh.softmax of float32[4, 6]",
}


def traced(model):
    with Tracer("float32") as tracer:
        features = tracer.input("features", (4, 6), "float32")
        labels = tracer.input("labels", (4,), "int32")
        loss = nn.softmax_cross_entropy(nn.Dense(5)(features), labels)
        outputs = [("out", model(features, labels))]
        return tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), outputs)


def line_of(model):
    start = model.__code__.co_firstlineno
    lines = Path(__file__).read_text().splitlines()[start:]
    return 1 + start + next(i for i, line in enumerate(lines) if line.endswith("# refused"))


@pytest.mark.parametrize(("model", "message"), MODELS.items())
def test_the_users_line_comes_first(model, message):
    with pytest.raises(CompileError) as caught:
        validate_model(traced(model))
    assert str(caught.value).startswith(f"{__file__}:{line_of(model)}: {message}")


def test_an_operator_may_have_several_kernels():
    kernels = validate_model(traced(lambda features, labels: features)).kernels
    kinds = [kernel.kind for kernel in kernels]
    first = kinds.index("softmax_cross_entropy")
    assert kinds[first + 1] == "loss_sum"
    assert kernels[first + 1].reads[0] in kernels[first].writes


def test_a_weight_named_like_optimizer_state_is_refused():
    def network(optimizer):
        with Tracer("float32") as tracer:
            features = tracer.input("features", (4, 6), "float32")
            labels = tracer.input("labels", (4,), "int32")
            hidden = nn.Dense(5, name="momentum/out")(features)
            loss = nn.softmax_cross_entropy(nn.Dense(5, name="out")(hidden), labels)
            return tracer.finish(RunMode.TRAIN, loss, optimizer.minimize(loss), [])

    message = "weight momentum/out/kernel: the name is taken in checkpoints by the optimizer's"
    with pytest.raises(CompileError, match=message):
        validate_model(network(nn.SGD(0.1, momentum=0.9)))
    validate_model(network(nn.Adam(0.1)))


def test_the_line_is_no_part_of_the_text():
    text = print_module(traced(halves))
    assert Path(__file__).stem not in text
    with pytest.raises(CompileError, match=f"^{re.escape(MODELS[halves])}"):
        validate_model(parse_module(text))
