"""CPU time of causal attention in machine code, compared with NumPy and PyTorch, one thread.

Query, key and value are parts of one projection [B, T, 3, H, E], as a transformer's are.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from time import thread_time
from typing import Any

import numpy as np
from result import Result, interleaved
from support.attention_code import build
from support.kernels import bound

from csrun.compiler.emit.llvm.attention import attention_code
from csrun.compiler.emit.llvm.module import KernelCode
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.kernel import Phase
from csrun.compiler.kernels.attention import Attention

ROUNDS = 21
SIDE = "machine code"
Call = Callable[[], Any]


def measure_attention(torch: Any, settings: str) -> None:
    """Print both directions."""
    sizes = 4, 6, 256, 64
    for what, calls in attention_directions(torch, *sizes).items():
        sides = {name: lambda call=call: cpu_seconds(call) for name, call in calls.items()}
        times = interleaved(sides, ROUNDS)
        for other in [name for name in calls if name != SIDE]:
            Result(
                "kernels", f"causal attention {list(sizes)} {what}, CPU time, {settings}", SIDE,
                "ms", times[SIDE] * 1e3, other, times[SIDE] / times[other], ROUNDS,
            ).print()  # fmt: skip


def cpu_seconds(call: Call) -> float:
    started = thread_time()
    call()
    return thread_time() - started


def attention_directions(
    torch: Any, batch: int, heads: int, length: int, size: int
) -> dict[str, dict[str, Call]]:
    """Sides by direction."""
    kernels = attention_kernels(batch, heads, length, size)
    values = {}
    for name, shape in (
        ("joined", (batch, length, 3, heads, size)),
        ("grad", (batch, length, heads, size)),
    ):
        values[name] = np.random.default_rng(len(shape)).standard_normal(shape).astype("float32")
    forward, arrays = bound(kernels[:1], values)
    forward()  # its results are read backward
    backward, arrays = bound(kernels[1:], arrays)
    codes = [attention_code(kernel, kernel.phase.name) for kernel in kernels]
    machine_calls = calls_of([code for code in codes if code is not None], arrays)
    leaf, grad = (torch.from_numpy(values[name]) for name in ("joined", "grad"))
    attend = torch.nn.functional.scaled_dot_product_attention
    leaf.requires_grad_()
    y = attend(*(leaf[:, :, n].transpose(1, 2) for n in range(3)), is_causal=True)
    plain = [leaf.detach()[:, :, n].transpose(1, 2) for n in range(3)]
    peers = (
        lambda: attend(*plain, is_causal=True),
        lambda: torch.autograd.grad(y, leaf, grad.transpose(1, 2), retain_graph=True),
    )
    sides = zip(machine_calls, (forward, backward), peers, strict=True)
    names = SIDE, "NumPy form", "PyTorch"
    return {
        what: dict(zip(names, calls, strict=True))
        for what, calls in zip(("forward", "backward"), sides, strict=True)
    }


def attention_kernels(batch: int, heads: int, length: int, size: int) -> list[Attention]:
    """The kernels of both directions."""
    joined, slopes = (
        Array(name, (batch, length, 3, heads, size), "float32") for name in ("joined", "slopes")
    )
    out, grad = (
        Array(name, (batch, length, heads, size), "float32").permuted((0, 2, 1, 3))
        for name in ("out", "grad")
    )
    parts, gradients = (
        tuple(whole.selected(2, n).permuted((0, 2, 1, 3)) for n in range(3))
        for whole in (joined, slopes)
    )
    saved = out, Array("sums", (batch, heads, length), "float32")
    options = None, True, size**-0.5, None
    return [
        Attention("", parts, saved, *options, Phase.FORWARD),
        Attention("", (grad, *parts, *saved), gradients, *options, Phase.BACKWARD),
    ]


def calls_of(codes: Sequence[KernelCode], arrays: Mapping[str, Any]) -> list[Call]:
    """Calls of machine code, over separate memory."""
    memory = {name: array.copy() for name, array in arrays.items()}
    machine = build(codes)
    return [_call(machine, code, memory) for code in codes]


def _call(machine: Any, code: KernelCode, memory: Mapping[str, Any]) -> Call:
    scratch = np.zeros(code.scratch_bytes + 64, np.uint8)
    addresses = [memory[a.name].ctypes.data + 4 * a.offset for a in code.parameters]
    addresses += [0, scratch.ctypes.data + -scratch.ctypes.data % 64]
    arguments = (ctypes.c_void_p * len(addresses))(*addresses)
    run = machine.function(code.name, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    owned, place, rows = (
        (machine, memory, scratch, arguments),
        ctypes.addressof(arguments),
        code.rows,
    )
    return lambda _=owned: run(place, 0, rows)
