"""Kernels of transformers beside PyTorch's eager ones, one thread on both sides.

Once with the environment as it is found, once without the variables that choose OpenBLAS's core:
they slow NumPy's products. Each in a process of its own.
"""

import sys
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
from processes import with_and_without_openblas
from result import Result, interleaved
from threadpoolctl import threadpool_limits

from csrun.compiler.kernels.activation_code import CODES
from csrun.compiler.kernels.normalization import TILE_BYTES
from csrun.compiler.kernels.wide_cross_entropy import TILE_BYTES as LOSS_TILE_BYTES
from csrun.executable import attention, cross_entropy, normalization, special

ROUNDS = 21
Call = Callable[[], Any]


def report(
    workload: str, side: str, baseline: str, calls: Mapping[str, Call], limit: float
) -> None:
    """Print the time of one call over that of another."""
    times = interleaved({name: lambda run=run: seconds(run) for name, run in calls.items()}, ROUNDS)
    ratio = times[side] / times[baseline]
    Result(
        "kernels", workload, side, "ms", times[side] * 1e3, baseline, ratio, ROUNDS, at_most=limit
    ).print()


def seconds(run: Call) -> float:
    started = perf_counter()
    run()
    return perf_counter() - started


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def attention_calls(torch: Any, batch: int, heads: int, length: int, size: int) -> dict[str, Call]:
    """Causal attention and its gradients, heads as they lie in one projection."""
    joined, grad = normal(batch, length, 3, heads, size), normal(batch, length, heads, size)
    q, k, v = (joined[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    g, rows = grad.transpose(0, 2, 1, 3), min(length, attention.BLOCK)
    out, sums = np.empty_like(g), np.empty((batch, heads, length), "float32")
    scratch = attention.Scratch(normal(rows, size), normal(rows, length), normal(rows, 1))
    back = attention.BackwardScratch(
        normal(rows, length), normal(length, size), normal(length, size)
    )
    slopes = [np.empty_like(x) for x in (q, k, v)]
    later, scale = attention.later(rows, "float32"), size**-0.5

    def ours() -> None:
        attention.attend(q, k, v, None, out, sums, scratch, later, scale)
        attention.attend_backward(g, q, k, v, out, sums, None, *slopes, scratch, back, later, scale)

    leaf, slope = torch.from_numpy(joined).requires_grad_(), torch.from_numpy(g)

    def theirs() -> None:
        heads = (leaf[:, :, i].transpose(1, 2) for i in range(3))
        y = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        torch.autograd.grad(y, leaf, slope)

    return {"csrun": ours, "PyTorch eager": theirs}


def norm_calls(torch: Any, rows: int, size: int) -> dict[str, Call]:
    """Layer norm and its gradients."""
    x, grad, weight, bias = (
        normal(rows, size),
        normal(rows, size + 1)[:, 1:],
        normal(size),
        normal(size),
    )
    grad = np.ascontiguousarray(grad)
    out, mean, rstd, dx = np.empty_like(x), normal(rows), normal(rows), np.empty_like(x)
    dw, db, part, tile = (
        np.empty_like(weight),
        np.empty_like(bias),
        normal(size),
        TILE_BYTES // 4 // size,
    )
    tiles, row_sums = (normal(tile, size), normal(tile, size)), (normal(tile), normal(tile))
    ones, of_tile = np.ones(size, "float32"), np.ones(tile, "float32")

    def ours() -> None:
        normalization.layer_norm(x, weight, bias, out, mean, rstd, ones, tiles[0], 1e-5)
        normalization.layer_norm_backward(
            grad, x, mean, rstd, weight, dx, dw, db, of_tile, tiles, row_sums, part
        )

    leaves = [torch.from_numpy(a).requires_grad_() for a in (x, weight, bias)]
    slope = torch.from_numpy(grad)

    def theirs() -> None:
        y = torch.nn.functional.layer_norm(leaves[0], (size,), *leaves[1:])
        torch.autograd.grad(y, leaves, slope)

    return {"csrun": ours, "PyTorch eager": theirs}


def loss_calls(torch: Any, rows: int, classes: int) -> dict[str, Call]:
    """Cross entropy and its gradient; the limit is PyTorch's own time."""
    logits, labels = normal(rows, classes), np.random.default_rng(1).integers(0, classes, rows)
    losses, sums, gradient = normal(rows), normal(rows), np.empty_like(logits)
    ignored, tile = np.zeros(rows, bool), max(1, LOSS_TILE_BYTES // 4 // classes)
    scratch = normal(tile, classes)

    def ours() -> None:
        cross_entropy.row_losses(logits, labels, losses, sums, scratch)
        cross_entropy.row_gradients(logits, labels, sums, ignored, 1 / rows, gradient, tile)

    leaf, wanted = torch.from_numpy(logits).requires_grad_(), torch.from_numpy(labels)

    def theirs() -> None:
        torch.autograd.grad(torch.nn.functional.cross_entropy(leaf, wanted), leaf)

    return {"csrun": ours, "PyTorch eager": theirs}


def gelu_calls(count: int = 1 << 15) -> dict[str, Call]:
    """Exact gelu and its form by tanh, forward and backward, over a tile that the cache holds."""
    x, grad = normal(count), np.empty(count, "float32")
    arrays = {"x": x, "g": grad, "y": np.empty_like(x), **{n: np.empty_like(x) for n in "fhk"}}
    scope = {**vars(np), "special": special, **arrays}

    def call(forward: str, backward: str) -> Call:
        lines = ["g.fill(1)"]
        for name, operands in ((forward, "xy"), (backward, "gx")):
            code = CODES[name]
            lines += code.text({}, *operands, *"fhk"[: len(code.scratch)])
        program = compile("\n".join(lines), "gelu", "exec")
        return lambda: exec(program, scope)

    return {
        "exact": call("gelu", "gelu_backward"),
        "by tanh": call("gelu_tanh", "gelu_backward_tanh"),
    }


def measure(settings: str) -> None:
    """All kernels in this process's environment."""
    import torch

    torch.set_num_threads(1)
    with threadpool_limits(1):
        for shape in ((4, 6, 256, 64), (2, 12, 256, 64), (1, 12, 1024, 64)):
            workload = f"causal attention {list(shape)}, {settings}"
            report(workload, "csrun", "PyTorch eager", attention_calls(torch, *shape), 1.05)
        for rows, size in ((1024, 384), (512, 768)):
            workload = f"layer norm [{rows}, {size}], {settings}"
            report(workload, "csrun", "PyTorch eager", norm_calls(torch, rows, size), 3.0)
        workload = f"cross entropy [512, 50257], {settings}"
        report(workload, "csrun", "PyTorch eager", loss_calls(torch, 512, 50257), 1.0)
        report(f"gelu, {settings}", "exact", "by tanh", gelu_calls(), 2.0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1])
    else:
        with_and_without_openblas(__file__)
