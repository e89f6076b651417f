"""Functions of program.py: one for each distinct kernel, and their machine code."""

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.programs import Machine, Network, options_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import compile_model
from csrun.compiler.emit import kernel_functions
from csrun.compiler.emit.kernel_functions import KernelFunctions
from csrun.compiler.matching import match_kernels
from csrun.compiler.passes import run_passes
from csrun.nn.tracer import Tracer


def module_of(model, rows=8):
    with Tracer("float32") as tracer:
        x = tracer.input("features", (rows, 12), "float32")
        labels = tracer.input("labels", (rows,), "int32")
        loss = nn.softmax_cross_entropy(nn.Dense(3)(model(x)), labels)
        return tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [])


def functions_of(model):
    run_passes(module := module_of(model))
    return KernelFunctions(match_kernels(module).kernels)


def twice(layer):
    """Two layers of equal size in sequence."""
    return lambda x: layer()(nn.Dense(12)(layer()(nn.Dense(12)(x))))


def test_layers_of_one_size_have_one_function():
    names = [name for name in functions_of(twice(nn.LayerNorm))._forms if name.startswith("norm_")]
    assert [name.rpartition("_")[0] for name in names] == ["norm", "norm_backward"]


def test_masks_of_two_layers_are_two_functions_with_one_code():
    files = functions_of(twice(lambda: nn.Dropout(0.5))).kernel_files()
    masks = [s for name, s in files.manifest.kernels.items() if name.startswith("dropout_mask_")]
    first, second = masks
    assert first.function == second.function
    assert first.texts != second.texts
    assert files.texts[1].count(f"define void @{first.function}(") == 1


def test_a_program_calls_bound_functions(tmp_path):
    program = compile_model(module_of(twice(nn.LayerNorm)), tmp_path, options_of()).executable
    visits = program.program.partition("def forward_0")[2]
    assert "matmul(" not in visits
    assert "normalization." not in visits
    lines = [line.strip() for line in visits.splitlines()]
    assert len([line for line in lines if line.startswith("run_layer_norm")]) == 4


def test_the_share_of_machine_code_is_that_of_its_flops():
    functions = functions_of(nn.Dense(12))
    assert functions.share_of(functions.kernel_files().functions) == 1
    assert 0 < functions.share_of(functions.kernel_files("blas").functions) < 0.5


def test_a_product_of_an_input_is_called_with_it(tmp_path):
    network = Network()
    found = network.compile(tmp_path, ExecutionMode.PIPELINED, kernels="llvm")
    products = found.kernels.manifest.products.values()
    assert [p.a.is_input for p in products].count(True) == 2  # the layer's, and its gradient's
    machine = Machine(found, network.parameters())
    first, second = network.batches(2)
    machine.train(first)
    before = {name: value.copy() for name, value in machine.state.items()}
    machine.train(second)
    assert any((machine.state[name] != value).any() for name, value in before.items())
    assert all(np.isfinite(value).all() for value in machine.state.values())


def test_inputs_that_are_copied_live_until_the_kernel_has_read_them(tmp_path):
    rows, columns = 512, 4096  # copies are mapped, and unmapped when nobody has them any more
    with Tracer("float32") as tracer:
        x, y = (tracer.input(name, (rows, columns), "float32") for name in "xy")
        module = tracer.finish(RunMode.PREDICT, None, None, [("z", x * y)])
    options = options_of(run_mode=RunMode.PREDICT, kernels="llvm")
    machine = Machine(compile_model(module, tmp_path, options).executable, {})
    random = np.random.default_rng(1)
    x, y = (random.standard_normal((columns, rows)).astype(np.float32).T for _ in range(2))
    machine.predict((x, y))
    np.testing.assert_array_equal(machine.output("z"), x * y)


def test_programs_of_a_process_share_the_code_of_functions(monkeypatch):
    """The second program has one more layer, so that its kernels and arrays have other names."""
    build, built = kernel_functions.kernel_code, []

    def noted(*args):
        built.append(args)
        return build(*args)

    def deeper(x):
        return twice(nn.LayerNorm)(nn.Dense(12)(x))

    monkeypatch.setattr(kernel_functions, "kernel_code", noted)
    monkeypatch.setattr(kernel_functions, "_codes", {})
    alone = functions_of(deeper).kernel_files()
    of_all = len(built)
    kernel_functions._codes.clear()
    functions_of(twice(nn.LayerNorm)).kernel_files()
    built.clear()
    after = functions_of(deeper).kernel_files()
    assert len(built) < of_all / 2
    assert (after.manifest, after.texts) == (alone.manifest, alone.texts)
