"""`runconfig.kernels` and `products`: the form of kernels and matrix products."""

import pytest

from csrun.base.errors import UsageError
from csrun.base.half_formats import BFLOAT16, storage_format
from csrun.base.run_config import CSRunConfig
from csrun.estimator.compile_options import form_of_kernels, form_of_products
from csrun.executable import bfloat16, machine_code


@pytest.fixture(params=["supported", "no llvmlite", "old CPU"])
def host(request, monkeypatch):
    monkeypatch.setattr(machine_code, "is_supported", lambda: request.param == "supported")
    monkeypatch.setattr(machine_code, "is_installed", lambda: request.param != "no llvmlite")
    return request.param


def test_auto_is_machine_code_where_it_can_be(host):
    assert form_of_kernels(CSRunConfig()) == ("llvm" if host == "supported" else "numpy")


def test_numpy_is_numpy_everywhere(host):
    assert form_of_kernels(CSRunConfig(kernels="numpy")) == "numpy"


def test_llvm_without_what_it_takes_is_an_error_with_the_remedy(host):
    config = CSRunConfig(kernels="llvm")
    if host == "supported":
        assert form_of_kernels(config) == "llvm"
        return
    lacks = {"no llvmlite": "pip install llvmlite", "old CPU": "the CPU lacks fma or avx2"}
    with pytest.raises(UsageError, match=f"^runconfig.kernels: llvm: .*{lacks[host]}"):
        form_of_kernels(config)


AMD, INTEL = "+avx512bf16", "+avx512bf16,+amx-bf16"


@pytest.mark.parametrize(
    ("options", "kernels", "features", "form"),
    [
        ({"precision": "mixed_bfloat16"}, "llvm", AMD, "avx512_bf16"),
        ({"precision": "mixed_bfloat16"}, "llvm", INTEL, "amx_bf16"),
        ({"precision": "mixed_bfloat16"}, "llvm", "+avx512f,-avx512bf16", "own"),
        ({"precision": "mixed_bfloat16"}, "numpy", INTEL, "own"),
        ({"precision": "mixed_bfloat16", "products": "float32"}, "llvm", INTEL, "own"),
        ({"precision": "mixed_bfloat16", "products": "blas"}, "llvm", INTEL, "blas"),
        ({"precision": "mixed_float16"}, "llvm", INTEL, "own"),
        ({}, "llvm", INTEL, "own"),
    ],
)
def test_products_of_bfloat16_use_the_cpus_instructions(
    monkeypatch, options, kernels, features, form
):
    monkeypatch.setattr(machine_code, "host", lambda: f"some_cpu {features}")
    monkeypatch.setattr(bfloat16, "_has_permission", lambda: True)
    config = CSRunConfig(**options)
    assert form_of_products(config, kernels, storage_format(config.precision)) == form


def test_without_amxs_registers_products_are_of_float32(monkeypatch):
    """AVX512-BF16 is slower on such a CPU."""
    monkeypatch.setattr(machine_code, "host", lambda: f"some_cpu {INTEL}")
    monkeypatch.setattr(bfloat16, "_has_permission", lambda: False)
    assert form_of_products(CSRunConfig(), "llvm", BFLOAT16) == "own"
