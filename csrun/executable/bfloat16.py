"""Instructions that multiply pairs of bfloat16: what this host has, and which of them is fast."""

import ctypes
from functools import cache
from typing import Literal

from csrun.executable import machine_code
from csrun.executable.products import AMX_BF16, AVX512_BF16, Tile

Instructions = Literal["avx512_bf16", "amx_bf16"]
#: Products of a program.
Products = Literal["own", "blas"] | Instructions
TILES: dict[Instructions, Tile] = {"avx512_bf16": AVX512_BF16, "amx_bf16": AMX_BF16}
TITLES: dict[Instructions, str] = {"avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX-BF16"}
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


def instructions_of(products: Products) -> Instructions | None:
    """Return the instructions for bfloat16 that a program's products use; None if none."""
    return products if products != "own" and products != "blas" else None


def has(instructions: Instructions) -> bool:
    """Return whether this process can run them."""
    if instructions == "amx_bf16":
        return "+amx-bf16" in machine_code.host() and _has_permission()
    return "+avx512bf16" in machine_code.host()


def fastest() -> Instructions | None:
    """The instructions that are faster here than float32 products; None if there are none.

    CPUs with AMX take longer for AVX512-BF16 than for float32: Granite Rapids 1.7 times as long.
    """
    if has("amx_bf16"):
        return "amx_bf16"
    return "avx512_bf16" if has("avx512_bf16") and "+amx-bf16" not in machine_code.host() else None


@cache
def _has_permission() -> bool:
    """Ask Linux for AMX's registers, for this process and those forked from it.

    Source: Linux kernel documentation, arch/x86/xstate
    """
    syscall = ctypes.CDLL(None).syscall
    return bool(syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0)
