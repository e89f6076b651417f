"""Generated kernels: which operators are fused into one, and its text."""

from support.programs import options_of

from csrun import nn
from csrun.base.mode import RunMode
from csrun.cirh.ops.reductions import SumOp
from csrun.compiler import compile_model
from csrun.compiler.kernels import Phase
from csrun.compiler.lair import Generated, parse_kernels, print_kernels
from csrun.compiler.matching import match_kernels
from csrun.compiler.passes import run_passes
from csrun.nn.tracer import Tracer, scope

ROWS, COLUMNS = 24, 8


def trace(model, dtype="float32"):
    with Tracer(dtype) as tracer:
        features = tracer.input("features", (ROWS, 4), dtype)
        labels = tracer.input("labels", (ROWS,), "int32")
        loss, outputs = model(nn.Dense(COLUMNS, use_bias=False)(features), labels)
        return tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), outputs)


def own_activation(x, labels):
    y = x * nn.sigmoid(1.702 * x)
    z = y / nn.mean(y, axis=-1, keepdims=True)
    return nn.softmax_cross_entropy(nn.Dense(3, use_bias=False)(z), labels), []


def generated(model, most=None):
    run_passes(module := trace(model))
    return [k for k in match_kernels(module, most).kernels if isinstance(k, Generated)]


def test_a_composition_that_no_rule_knows_is_one_kernel_forward_and_one_backward():
    forward, backward = generated(own_activation)
    assert [forward.phase, backward.phase] == [Phase.FORWARD, Phase.BACKWARD]
    made_of = list(forward.loop.operators)
    wanted = ["mul", "sigmoid", "mul", "sum", "div", "div"]
    assert made_of == [f"cirh.{name}" for name in wanted]


def numbered(x, labels):
    with scope(0):
        return own_activation(x, labels)


def test_functions_of_a_layer_with_a_number_as_name_are_python():
    for kernel in generated(numbered):
        compile("\n".join(kernel.loop.function.lines()), "program.py", "exec")


def test_at_most_one_operator_a_kernel_leaves_them_apart():
    kernels = generated(own_activation, most=1)
    assert [len(k.loop.operators) for k in kernels] == 18 * [1]
    assert sum(k.flops for k in kernels) == sum(k.flops for k in generated(own_activation))


def test_kernels_are_read_back_from_their_text():
    text = print_kernels([k.loop.op for k in generated(own_activation)])
    assert print_kernels(parse_kernels(text)) == text
    assert "lair.generic" in text


def test_the_compile_directory_shows_the_kernels(tmp_path):
    executable = compile_model(trace(own_activation), tmp_path, options_of()).executable
    kernels = parse_kernels(next(executable.directory.glob("*_lair.mlir")).read_text())
    assert [len(kernel.operators) for kernel in kernels] == [6, 12, 1]
    assert kernels[-1].symbol.data == "sgd"


def test_values_that_others_need_between_keep_operators_apart():
    """Inputs of a layer are written before it runs, and values made from its output after it."""

    def model(x, labels):
        doubled = x * 2.0
        return nn.softmax_cross_entropy(
            nn.Dense(COLUMNS, use_bias=False)(doubled) + doubled, labels
        ), []

    forward = [k for k in generated(model) if k.phase is Phase.FORWARD]
    assert [len(k.loop.operators) for k in forward] == [1, 1]


def test_a_sum_over_rows_is_there_only_after_the_loop():
    def model(x, labels):
        total = x.tracer.emit(SumOp, x * x, dims=(0,), keepdim=True)
        loss = nn.softmax_cross_entropy(nn.Dense(3, use_bias=False)(x), labels)
        return loss, [("shares", x * x / total)]

    forward = [k for k in generated(model) if k.phase is Phase.FORWARD]
    assert len(forward) == 2


def test_scratch_is_of_a_tile_and_shared(monkeypatch):
    monkeypatch.setattr("csrun.compiler.lair.loop.TILE_BYTES", 2000)
    forward, backward = generated(own_activation)
    for kernel in (forward, backward):
        assert all(array.shape[0] < ROWS for array in kernel.scratch)
    assert len(backward.scratch) < 13


def test_bias_and_activation_are_one_kernel_over_the_product():
    def model(x, labels):
        y = nn.Dense(COLUMNS, "relu")(x)
        return nn.softmax_cross_entropy(nn.Dense(3, use_bias=False)(y), labels), []

    forward, backward = generated(model)
    assert list(forward.loop.operators) == ["cirh.add", "cirh.relu"]
    (written,) = forward.writes
    assert written in forward.reads
    assert not forward.scratch
    assert list(backward.loop.operators) == ["cirh.threshold_backward", "cirh.sum"]
    gradient, of_bias = backward.writes
    assert gradient in backward.reads
    assert of_bias.name == "gradient:dense_1/bias"


def test_a_value_that_others_read_is_not_written_over():
    def model(x, labels):
        y = nn.Dense(COLUMNS, "silu")(x)
        return nn.softmax_cross_entropy(nn.Dense(3, use_bias=False)(y), labels), []

    forward, _ = generated(model)  # what silu took is read again on the way back
    kept, out = forward.writes
    assert kept in forward.reads
    assert out not in forward.reads


def test_dropout_goes_with_the_activation():
    def model(x, labels):
        y = nn.Dropout(0.5)(nn.Dense(COLUMNS, "relu")(x))
        return nn.softmax_cross_entropy(nn.Dense(3, use_bias=False)(y), labels), []

    forward, backward = generated(model)
    assert forward.loop.operators[1:] == ("cirh.relu", "cirh._masked_scale")
    assert backward.loop.operators[:2] == ("cirh._masked_scale", "cirh.threshold_backward")
    assert forward.flops == 4 * ROWS * COLUMNS
