"""Speeds of this machine: measured once, cached, measured again if the cache is damaged."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.programs import Network

from csrun.advice import machine_speeds
from csrun.advice.machine_speeds import FOLDER, forms_of, speeds_here
from csrun.base.half_formats import BFLOAT16
from csrun.base.mode import ExecutionMode
from csrun.executable import Executable, bfloat16, machine_code

needs_code = pytest.mark.skipif(
    not machine_code.is_supported(), reason="no machine code: llvmlite is not installed"
)
NETWORK = Network(sizes=(64, 128, 10), batch=32)


def compiled(folder: Path, storage: object = None, **options: str) -> Executable:
    network = replace(NETWORK, storage=storage)
    return network.compile(folder, ExecutionMode.PIPELINED, **options)


@pytest.fixture
def program(tmp_path: Path) -> Executable:
    """Program of NumPy kernels."""
    return compiled(tmp_path)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measurements made, each with another speed."""
    made: list[str] = []

    def speed(name: str) -> float:
        made.append(name)
        return float(len(made))

    monkeypatch.setenv("CSRUN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(machine_speeds, "product_rate", lambda program, form: speed(form))
    monkeypatch.setattr(machine_speeds, "copy_rate", lambda: speed("copy"))
    monkeypatch.setattr(machine_speeds, "disk_speed", lambda folder: speed("disk"))
    return made


def test_they_are_measured_once(program: Executable, measured: list[str]) -> None:
    speeds, disk = speeds_here(program)
    assert (speeds.copy_bytes_per_s, speeds.flops_per_s, disk) == (1.0, {"blas": 2.0}, 3e6)
    assert speeds_here(program) == (speeds, disk)
    assert measured == ["copy", "blas", "disk"]


def test_products_of_another_form_are_measured_beside_the_others(
    program: Executable, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds_here(program)
    monkeypatch.setattr(machine_speeds, "forms_of", lambda program: {"amx_bf16": 0.9, "own": 0.1})
    speeds, _ = speeds_here(program)
    assert speeds.flops_per_s == {"blas": 2.0, "amx_bf16": 4.0, "own": 5.0}
    assert speeds_here(program)[0] == speeds
    assert measured == ["copy", "blas", "disk", "amx_bf16", "own"]


@pytest.mark.parametrize("damage", [b"", b"{}", b'{\n "crc32": "00000000", "flops_per_s": 1}\n'])
def test_a_damaged_cache_is_measured_again(
    program: Executable, tmp_path: Path, measured: list[str], damage: bytes
) -> None:
    speeds_here(program)
    (path,) = (tmp_path / "cache" / FOLDER).iterdir()
    path.write_bytes(damage)
    assert speeds_here(program)[0].copy_bytes_per_s == 4.0
    assert speeds_here(program)[0].copy_bytes_per_s == 4.0
    assert len(measured) == 6


def test_another_machine_or_version_has_its_own(
    program: Executable, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds_here(program)
    monkeypatch.setattr(machine_speeds, "cpu_and_flags", lambda: ("another CPU", frozenset()))
    assert speeds_here(program)[0].copy_bytes_per_s == 4.0
    monkeypatch.setattr(machine_speeds, "installed_versions", lambda: {"csrun": "9.9"})
    assert speeds_here(program)[0].copy_bytes_per_s == 7.0


def test_without_a_cache_they_are_measured_each_time(
    program: Executable, tmp_path: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CSRUN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert speeds_here(program)[0].copy_bytes_per_s == 1.0
    assert speeds_here(program)[0].copy_bytes_per_s == 4.0


@needs_code
def test_forms_are_those_of_the_programs_products(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All products of a network in bfloat16, and their share of its operations by hand."""
    assert forms_of(compiled(tmp_path, kernels="llvm")) == {"own": 1.0}
    assert forms_of(compiled(tmp_path, kernels="llvm", products="blas")) == {"blas": 1.0}
    program = compiled(tmp_path, BFLOAT16, kernels="llvm", products="amx_bf16")
    monkeypatch.setattr(bfloat16, "has", lambda instructions: True)
    found = forms_of(program)
    first, second = 64 * 128, 128 * 10
    products = 2 * NETWORK.batch * (2 * first + 3 * second)  # no gradient of the input
    layers = program.plan.layers
    flops = sum(layer.forward_flops + layer.backward_flops for layer in layers)
    assert found["amx_bf16"] == pytest.approx(products / flops)
    assert sum(found.values()) == pytest.approx(1)
    monkeypatch.setattr(bfloat16, "has", lambda instructions: False)
    assert forms_of(program) == {"own": 1.0}


@needs_code
@pytest.mark.parametrize("form", ["own", "avx512_bf16", "amx_bf16"])
def test_the_code_of_a_programs_products_multiplies(tmp_path: Path, form: str) -> None:
    """Small integers, whose sums need no rounding."""
    if form != "own" and not bfloat16.has(form):
        pytest.skip(f"no {form} here")
    program = compiled(tmp_path, None if form == "own" else BFLOAT16, kernels="llvm", products=form)
    random = np.random.default_rng(3)
    a, b, out = (random.integers(-8, 8, (40, 40)).astype(np.float32) for _ in range(3))
    assert program.kernels is not None
    program.kernels.product_call(program.directory, (a, b, out), 2, form != "own")()
    np.testing.assert_array_equal(out, a @ b)


@pytest.mark.parametrize(
    "rate",
    [lambda program: machine_speeds.product_rate(program, "blas"),
     lambda program: machine_speeds.copy_rate()],
)  # fmt: skip
def test_products_and_copies_have_speeds_of_a_computer(
    program: Executable, rate: Callable[[Executable], float]
) -> None:
    assert 1e7 < rate(program) < 1e15
