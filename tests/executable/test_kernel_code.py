"""Machine code in a compile directory: what is loaded, and what is done without it."""

import logging
from dataclasses import replace

import msgspec
import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.programs import Machine, Network

from csrun.base.mode import ExecutionMode
from csrun.executable import (
    UnreadableError,
    bound_kernel,
    kernel_code,
    kernel_signature,
    load,
    machine_code,
    team,
)

NETWORK = Network()


@pytest.fixture
def compiled(tmp_path):
    """A compile with machine code, read back."""
    found = NETWORK.compile(tmp_path, ExecutionMode.PIPELINED, kernels="llvm")
    return load(found.directory, found.digest)


@pytest.fixture(autouse=True)
def lines(caplog):
    caplog.set_level(logging.INFO, "csrun")
    kernel_code._log_once.cache_clear()
    return caplog


def trained(executable, threads=1):
    """The weights after two steps."""
    machine = Machine(executable, NETWORK.parameters(), threads)
    for batch in NETWORK.batches(2):
        machine.train(batch)
    return {name: value.copy() for name, value in machine.state.items()}


def assert_equal(found, wanted):
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_the_directory_has_readable_ir_and_an_object(compiled):
    text = (compiled.directory / "kernels.ll").read_text()
    assert "lair.kernel" in text
    for name, signature in compiled.kernels.manifest.kernels.items():
        assert f"define void @{signature.function}(" in text
        assert f"def {name}(" in compiled.program
    assert compiled.kernels.images[1] == (compiled.directory / "kernels.o").read_bytes()
    assert compiled.kernels.manifest.target == machine_code.host()


def test_machine_code_takes_the_place_of_the_functions(compiled, lines):
    namespace = compiled._namespace()
    for name in compiled.kernels.manifest.kernels:
        assert isinstance(namespace[name], bound_kernel.KernelBinder)
    assert not lines.messages


def test_numbers_are_those_of_numpy_to_the_last_digits(compiled, tmp_path):
    by_numpy = NETWORK.compile(tmp_path / "numpy", ExecutionMode.PIPELINED)
    assert by_numpy.kernels is None
    found, wanted = trained(compiled), trained(by_numpy)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_bits_do_not_depend_on_the_number_of_threads(compiled):
    assert_equal(trained(compiled, 2), trained(compiled))
    assert_equal(trained(compiled, 3), trained(compiled))


def test_products_are_left_to_blas_on_demand(compiled, tmp_path):
    options = {"kernels": "llvm", "products": "blas"}
    by_blas = NETWORK.compile(tmp_path / "blas", ExecutionMode.PIPELINED, **options)
    assert compiled.kernels.manifest.products
    assert not by_blas.kernels.manifest.products
    assert by_blas.kernels.manifest.kernels
    found, wanted = trained(by_blas), trained(compiled)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_damaged_object_is_built_again(compiled, lines):
    wanted = trained(compiled)
    file = compiled.directory / "kernels.o"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    damaged = load(compiled.directory, compiled.digest)
    assert damaged.kernels.images[1] is None
    assert_equal(trained(damaged), wanted)
    assert lines.messages == [f"{file}: damaged, built again for this process"]
    file.unlink()
    assert load(compiled.directory, compiled.digest).kernels.images[1] is None


def test_the_object_of_another_cpu_is_not_run(compiled, lines, monkeypatch):
    manifest = msgspec.structs.replace(compiled.kernels.manifest, target="vax +d_float")
    files = replace(compiled.kernels, manifest=manifest, images=2 * (b"VAX code",))
    assert_equal(trained(replace(compiled, kernels=files)), trained(compiled))
    for name, line in zip(("common.o", "kernels.o"), lines.messages, strict=True):
        assert line.endswith(f"{name}: for another CPU, built again for this process")


@pytest.mark.parametrize("lacks", ["llvmlite", "avx2"])
def test_without_machine_code_the_program_runs_in_numpy(compiled, lines, monkeypatch, lacks):
    monkeypatch.setattr(machine_code, "is_supported", lambda: False)
    monkeypatch.setattr(machine_code, "is_installed", lambda: lacks != "llvmlite")
    namespace = compiled._namespace()
    assert not any(isinstance(each, bound_kernel.KernelBinder) for each in namespace.values())
    (line,) = lines.messages
    remedy = "pip install llvmlite" if lacks == "llvmlite" else "lacks fma or avx2"
    assert "kernels run in NumPy: " in line
    assert remedy in line
    trained(compiled)


def test_damaged_ir_is_a_damaged_compile(compiled):
    file = compiled.directory / "kernels.ll"
    file.write_text(file.read_text() + "; planted\n")
    with pytest.raises(UnreadableError, match=r"kernels\.ll does not match its checksum"):
        load(compiled.directory)


def is_machine_code(run):
    return isinstance(run, bound_kernel.BoundKernel | team.BoundCall)


def test_arrays_that_lie_otherwise_are_left_to_numpy(compiled):
    namespace = compiled._namespace()
    name = next(name for name in namespace if name.startswith("sgd_"))
    flat = [np.ones(5, np.float32) for _ in range(8)]
    strided = [np.ones(10, np.float32)[::2] for _ in range(8)]
    count = namespace[name].numpy_form.__code__.co_argcount
    assert is_machine_code(namespace[name](*flat[:count]))
    assert not is_machine_code(namespace[name](*strided[:count]))


def test_an_input_that_lies_otherwise_is_copied():
    array = kernel_signature.KernelArray(0, True, "float32", (3, 4), (1, 3))
    given = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert not array.fits(given)
    copy = array.copied(given)
    assert array.fits(copy)
    np.testing.assert_array_equal(copy, given)
    assert not array.fits(given.astype(np.float64))
