"""Machine code in a compile directory: loading it, and running without it."""

import logging
import re
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
    host_functions,
    kernel_code,
    kernel_signature,
    load,
    machine_code,
    team,
)
from csrun.executable.archive import members
from csrun.executable.object_cache import ObjectCache

NETWORK = Network()


@pytest.fixture
def compiled(tmp_path):
    """A compile with machine code, loaded from its directory."""
    found = NETWORK.compile(tmp_path, ExecutionMode.PIPELINED, kernels="llvm")
    return load(found.directory, found.digest)


@pytest.fixture(autouse=True)
def lines(caplog):
    caplog.set_level(logging.INFO, "csrun")
    kernel_code._log_once.cache_clear()
    return caplog


def trained(executable, threads=1):
    """Weights after two steps."""
    machine = Machine(executable, NETWORK.parameters(), threads)
    for batch in NETWORK.batches(2):
        machine.train(batch)
    return {name: value.copy() for name, value in machine.state.items()}


def assert_equal(found, wanted):
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_the_directory_has_readable_ir_and_its_objects(compiled):
    text = (compiled.directory / "kernels.ll").read_text()
    assert "lair.kernel" in text
    # It can be built on any CPU, although exp has an instruction of its own on some.
    assert "@times_power_of_2(" in text
    assert "llvm.x86" not in text
    for name, signature in compiled.kernels.manifest.kernels.items():
        comment, defined, _ = text.partition(f"define void @{signature.function}(")
        assert defined
        (line,) = [
            each for each in comment.splitlines()[-1:] if each.startswith("; in program.py: ")
        ]
        assert name in line.partition(": ")[2].split(", ")
        assert f"def {name}(" in compiled.program
    image = (compiled.directory / "kernels.a").read_bytes()
    assert compiled.kernels.images[1] == image
    assert [*members(image)] == functions_of(compiled)
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
    file = compiled.directory / "kernels.a"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    damaged = load(compiled.directory, compiled.digest)
    assert damaged.kernels.images[1] is None
    assert_equal(trained(damaged), wanted)
    assert lines.messages == [f"{file}: damaged, rebuilt for this process"]
    file.unlink()
    assert load(compiled.directory, compiled.digest).kernels.images[1] is None


def test_the_object_of_another_cpu_is_not_run(compiled, lines, monkeypatch):
    manifest = msgspec.structs.replace(compiled.kernels.manifest, target="vax +d_float")
    files = replace(compiled.kernels, manifest=manifest, images=2 * (b"VAX code",))
    assert_equal(trained(replace(compiled, kernels=files)), trained(compiled))
    for name, line in zip(("common.o", "kernels.a"), lines.messages, strict=True):
        assert line.endswith(f"{name}: for another CPU, rebuilt for this process")


@pytest.fixture
def builds(monkeypatch, tmp_path):
    """Modules built by this process, which starts with an empty object cache."""
    found, build = [], machine_code.build
    monkeypatch.setattr(machine_code, "build", lambda text: found.append(text) or build(text))
    monkeypatch.setattr(kernel_code, "_objects", ObjectCache(tmp_path / "objects"))
    kernel_code.built.cache_clear()
    yield found
    kernel_code.built.cache_clear()


def names_of(texts):
    return [name for text in texts for name in re.findall(r"^define void @([\w.]+)", text, re.M)]


def functions_of(executable):
    return names_of(executable.kernels.texts[1:])


def test_only_the_functions_that_are_new_are_built(builds, tmp_path):
    def compiled(root, **changes):
        network = replace(NETWORK, **changes)
        return network.compile(tmp_path / root, ExecutionMode.PIPELINED, kernels="llvm")

    first = compiled("first")
    own = functions_of(first)
    common, *texts = builds
    assert "@team.run(" in common
    assert names_of(texts) == own

    for changes in ({"batch": 24}, {"sizes": (12, 7, 11, 5)}):
        builds.clear()
        other = compiled("other", **changes)
        new = [name for name in functions_of(other) if name not in own]
        assert names_of(builds) == new
        assert 0 < len(new) < len(own)

    builds.clear()
    kernel_code.built.cache_clear()  # as in another process
    assert compiled("again").kernels.images == first.kernels.images
    assert not builds


def test_objects_for_another_cpu_are_not_taken_from_the_cache(builds, monkeypatch, tmp_path):
    text = "define void @f() {\n  ret void\n}\n"
    for target in ("vax +d_float", "pdp11 +fpp", "vax +d_float"):
        monkeypatch.setattr(machine_code, "host", lambda target=target: target)
        kernel_code.built.cache_clear()
        kernel_code.built(text)
    assert builds == [text] * 2


def test_objects_with_another_body_for_the_cpu_are_not_taken_from_the_cache(builds, monkeypatch):
    """As by another version of csrun whose portable text is the same."""
    portable = host_functions.PORTABLE[host_functions.TIMES_POWER]
    for version in ("first", "second", "first"):
        specific = "+fma", f"; {version}\n{portable}"
        monkeypatch.setitem(host_functions._SPECIFIC, host_functions.TIMES_POWER, specific)
        kernel_code.built.cache_clear()
        kernel_code.built(portable + "\ndefine void @f() {\n  ret void\n}\n")
    assert len(builds) == 2


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
