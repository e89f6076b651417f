"""The benchmarks of kernels call what there is, on small arrays."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is beside the kernels")


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("attention_calls", (1, 2, 8, 4)),
        ("norm_calls", (8, 16)),
        ("loss_calls", (8, 11)),
        ("softmax_calls", ("softmax", 8, 11)),
        ("softmax_calls", ("log_softmax", 8, 11)),
    ],
)
def test_both_sides_of_a_kernel_run(name, sizes):
    import kernels

    for call in getattr(kernels, name)(torch, *sizes).values():
        call()


def test_all_sides_of_attention_run():
    pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
    from attention_code import attention_directions

    for calls in attention_directions(torch, 1, 2, 8, 4).values():
        for call in calls.values():
            call()


def test_both_sides_of_a_matrix_product_run():
    pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
    from matrix_products import operands, product_calls

    for a, b in operands().values():
        a, b = a[..., :5, :7], b[..., :7, :9]
        for call in product_calls(a, b).values():
            call()


def test_the_library_runs(monkeypatch, capsys):
    pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
    import library

    monkeypatch.setattr(library, "ROUNDS", 1)
    monkeypatch.setattr(library, "SECONDS", 0.0)
    library.measure_norm(torch, "cirh.native_layer_norm", 8, 16)
    library.measure_softmax(torch, "log_softmax", 8, 11)
    library.measure_dropout(torch, 2, 3, 5)
    library.measure_rotary()
    library.measure_convolution(torch, (2, 4, 5, 5), 4, stride=2, groups=4)
    assert capsys.readouterr().out.count('"side":"machine code"') == 18


def test_gelus_run():
    import kernels

    for call in kernels.gelu_calls(64).values():
        call()


def test_a_feed_forward_block_is_cut_in_its_parts():
    from ffn import FACTOR, PRODUCT, FeedForward, _kept
    from kernels import least_activation

    block = FeedForward(8, 16)
    least = least_activation(FeedForward(64, 16))
    for call in (block.products(), block.activation(), block.update(), least):
        call()
    program = block._executable.program
    products = "\n".join(_kept(program, lambda layer, kind: layer == "up" and kind == PRODUCT))
    visits = products.partition("def forward_0")[2]
    assert visits.count("        run_up_mm") == 2
    assert visits.count("        run_gradient_up_kernel") == 1
    assert block.flops == 12 * 8 * 16 * FACTOR * 16
    rest = "\n".join(_kept(program, lambda layer, kind: layer == "up" and kind != PRODUCT))
    assert "up_bias" in rest
    assert "gradient_up_bias" in rest
    assert "run_up_" in rest.partition("def forward_0")[2]
    assert block.weights == sum((i + 1) * o for i, o in ((8, 16), (16, 64), (64, 16), (16, 8)))


def test_kernels_that_move_memory_run(monkeypatch, capsys):
    pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
    import memory_kernels as m

    sizes = {
        m._norms: (8, 16),
        m._softmaxes: (8, 11),
        m._cross_entropy: (8, 11),
        m._dropout: (2, 3, 5),
    }
    for make, shape in sizes.items():
        for kernel in make(torch, *shape):
            kernel.ours(2)()
            kernel.theirs()
