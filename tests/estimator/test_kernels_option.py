"""`runconfig.kernels` and `products`: which form kernels and matrix products have."""

import pytest

from csrun.base.errors import UsageError
from csrun.base.run_config import CSRunConfig
from csrun.estimator.compile_options import form_of_kernels, form_of_products
from csrun.executable import machine_code


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


@pytest.mark.parametrize(
    ("options", "kernels", "features", "form"),
    [
        ({"precision": "mixed_bfloat16"}, "llvm", "+avx512bf16", "bfloat16"),
        ({"precision": "mixed_bfloat16"}, "llvm", "+avx512f,-avx512bf16", "own"),
        ({"precision": "mixed_bfloat16"}, "numpy", "+avx512bf16", "own"),
        ({"precision": "mixed_bfloat16", "products": "float32"}, "llvm", "+avx512bf16", "own"),
        ({"precision": "mixed_bfloat16", "products": "blas"}, "llvm", "+avx512bf16", "blas"),
        ({"precision": "mixed_float16"}, "llvm", "+avx512bf16", "own"),
        ({}, "llvm", "+avx512bf16", "own"),
    ],
)
def test_products_of_bfloat16_use_the_cpus_instruction(
    monkeypatch, options, kernels, features, form
):
    monkeypatch.setattr(machine_code, "host", lambda: f"znver4 {features}")
    assert form_of_products(CSRunConfig(**options), kernels) == form
