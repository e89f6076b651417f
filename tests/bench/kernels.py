"""Kernels of transformers compared with PyTorch's eager ones, one thread on both sides unless said.

Matrix products of machine code are compared with OpenBLAS's.

Once with the environment unchanged, once without the variables that choose OpenBLAS's core:
they slow NumPy's products. Each in a separate process.
"""

import sys
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
from attention_code import measure_attention
from ffn import FACTOR, FeedForward
from library import measure_library
from matrix_products import measure_matrix_products
from memory_kernels import measure_memory
from processes import with_and_without_openblas
from result import Result, interleaved
from support.kernels import bound
from threadpoolctl import threadpool_limits

from csrun.cirh.ops.gelu import CUBE, INNER
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import LOSS
from csrun.compiler.kernels.normalization import TILE_BYTES
from csrun.compiler.kernels.softmax import TILE_BYTES as SOFTMAX_TILE_BYTES
from csrun.compiler.kernels.softmax_cross_entropy import (
    LossOperands,
    LossSum,
    WideBackward,
    WideForward,
)
from csrun.compiler.lair.functions import calls_of
from csrun.kernels import attention, normalization, softmax, special

ROUNDS = 21
LEAST_ROWS = 32  # of three arrays of 1536 or 3072 columns: what is best of 8 to 64
PEAK_SIZE = 2048  # of the product that tells the machine's peak
COPY_BYTES = 64 << 20
ADAMW_BYTES = 7 * 4  # a weight: reads it, its gradient and two moments, writes all but the gradient
Call = Callable[[], Any]


def report(
    workload: str,
    side: str,
    baseline: str,
    calls: Mapping[str, Call],
    limit: float | None = None,
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
    block = attention.ScoreBlock(
        size**-0.5,
        normal(rows, size),
        normal(rows, length),
        normal(rows, 1),
        attention.later(rows, "float32"),
    )
    results = attention.AttentionResults(out, sums, block)
    scratch = normal(rows, length), normal(length, size), normal(length, size)
    slopes = [np.empty_like(x) for x in (q, k, v)]
    gradients = attention.AttentionGradients(results, *slopes, *scratch)

    def ours() -> None:
        attention.attend(q, k, v, None, results)
        attention.attend_backward(g, q, k, v, None, gradients)

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
    results = normalization.LayerNormResults(out, mean, rstd, ones, tiles[0])
    gradients = normalization.LayerNormGradients(dx, dw, db, of_tile, tiles, row_sums, part)

    def ours() -> None:
        normalization.layer_norm(x, weight, bias, results, 1e-5)
        normalization.layer_norm_backward(grad, x, mean, rstd, weight, gradients)

    leaves = [torch.from_numpy(a).requires_grad_() for a in (x, weight, bias)]
    slope = torch.from_numpy(grad)

    def theirs() -> None:
        y = torch.nn.functional.layer_norm(leaves[0], (size,), *leaves[1:])
        torch.autograd.grad(y, leaves, slope)

    return {"csrun": ours, "PyTorch eager": theirs}


def loss_calls(torch: Any, rows: int, classes: int) -> dict[str, Call]:
    """Cross entropy and its gradient; the limit is PyTorch's own time."""
    logits, labels = normal(rows, classes), np.random.default_rng(1).integers(0, classes, rows)
    x, gradient = (Array(name, logits.shape, "float32") for name in ("logits", "gradient"))
    parts = LossOperands(
        x, Array("labels", (rows,), "int64"), -100, 0.0, None, True, "loss", "loss"
    )
    forward = WideForward("loss", parts), LossSum("loss", parts, LOSS, None, "1")
    backward = WideBackward("loss", parts, repr(1 / rows), gradient)
    ours, _ = bound([*forward, backward], {"logits": logits, "labels": labels})

    leaf, wanted = torch.from_numpy(logits).requires_grad_(), torch.from_numpy(labels)

    def theirs() -> None:
        torch.autograd.grad(torch.nn.functional.cross_entropy(leaf, wanted), leaf)

    return {"csrun": ours, "PyTorch eager": theirs}


def softmax_calls(torch: Any, name: str, rows: int, classes: int) -> dict[str, Call]:
    """Softmax or log-softmax along rows, and its gradient."""
    x, grad = normal(rows, classes, 1), normal(rows, classes, 1)
    out, dx, tile = np.empty_like(x), np.empty_like(x), max(1, SOFTMAX_TILE_BYTES // 4 // classes)
    scratch = normal(tile, classes, 1), normal(tile, 1), np.ones(classes, "float32")

    def ours() -> None:
        getattr(softmax, name)(x, out, *scratch)
        getattr(softmax, f"{name}_backward")(grad, out, dx, *scratch)

    leaf, slope = torch.from_numpy(x[:, :, 0]).requires_grad_(), torch.from_numpy(grad[:, :, 0])

    def theirs() -> None:
        torch.autograd.grad(getattr(torch, name)(leaf, 1), leaf, slope)

    return {"csrun": ours, "PyTorch eager": theirs}


def gelu_calls(count: int = 1 << 15) -> dict[str, Call]:
    """Exact gelu and its form by tanh, forward and backward, over a tile that the cache holds."""
    x = normal(count)
    arrays = {"x": x, **{name: np.empty_like(x) for name in ("cdf", "y", "slope", "g", "f", "h")}}
    scope = {**vars(np), "special": special, **arrays}

    def call(form: str) -> Call:
        options = (("approximate", form),)
        cdf, slope = calls_of("cirh.gelu_cdf", options), calls_of("cirh.gelu_slope", options)
        lines = [
            *(line.format("x", "cdf", "f", "h") for line in cdf.lines),
            "multiply(x, cdf, out=y)",
            *(line.format("x", "cdf", "y", "slope", "f") for line in slope.lines),
            "multiply(x, slope, out=g)",
        ]
        program = compile("\n".join(lines), "gelu", "exec")
        return lambda: exec(program, scope)

    return {"exact": call("none"), "by tanh": call("tanh")}


def activation_calls(torch: Any, block: FeedForward) -> dict[str, Call]:
    """Bias and gelu by tanh, and their gradients."""
    shape = block.rows, FACTOR * block.size
    leaves = [torch.from_numpy(a).requires_grad_() for a in (normal(*shape), normal(shape[1]))]
    slope = torch.from_numpy(normal(*shape))

    def theirs() -> None:
        y = torch.nn.functional.gelu(leaves[0] + leaves[1], approximate="tanh")
        torch.autograd.grad(y, leaves, slope)

    return {"csrun": block.activation(), "PyTorch eager": theirs}


def least_activation(block: FeedForward) -> Call:
    """What no form of bias and tanh-gelu in NumPy goes without, in tiles that the cache holds.

    The sum, the inner polynomial, tanh, the factor of gelu, gelu; an array for the backward pass is
    written, here at no cost; there the gradient is changed by it, and added up for the bias.
    """
    rows, size = block.rows, FACTOR * block.size
    x, grad, bias, out = normal(rows, size), normal(rows, size), normal(size), normal(rows, size)
    u, f, part, total = normal(LEAST_ROWS, size), normal(LEAST_ROWS, size), normal(size), bias * 0
    first, second, half = (np.array(n, "float32") for n in (INNER * CUBE, INNER, 0.5))
    cuts = [slice(at, at + LEAST_ROWS) for at in range(0, rows, LEAST_ROWS)]
    tiles, ones = [(x[cut], out[cut], grad[cut]) for cut in cuts], np.ones(LEAST_ROWS, "float32")

    def run() -> None:
        for saved, y, _ in tiles:
            np.add(saved, bias, out=u)
            np.multiply(u, u, out=f)
            np.multiply(f, first, out=f)
            np.add(f, second, out=f)
            np.multiply(f, u, out=f)
            np.tanh(f, out=f)
            np.multiply(f, half, out=f)
            np.add(f, half, out=f)
            np.multiply(u, f, out=y)
            np.multiply(u, f, out=saved)
        for saved, _, g in tiles:
            np.add(g, saved, out=g)  # as a product takes, whose numbers would not stay finite
            np.dot(ones, g, out=part)
            np.add(total, part, out=total)

    return run


def measure_products(block: FeedForward, settings: str) -> None:
    """Print the FLOP/s of a block's products over those of one large product."""
    a, b = normal(PEAK_SIZE, PEAK_SIZE), normal(PEAK_SIZE, PEAK_SIZE)
    out, products = np.empty_like(a), block.products()
    rates = interleaved(
        {
            "products": lambda: block.flops / seconds(products),
            "peak": lambda: 2 * PEAK_SIZE**3 / seconds(lambda: np.matmul(a, b, out=out)),
        },
        ROUNDS,
    )
    Result(
        "kernels", f"feed-forward {block.shapes}, {settings}", "products", "GFLOP/s",
        rates["products"] / 1e9, "peak", rates["products"] / rates["peak"], ROUNDS, at_least=0.85,
    ).print()  # fmt: skip


def measure_adamw(block: FeedForward, settings: str) -> None:
    """Print the bytes per second of an update over those of a copy; each byte moved counts once."""
    source, target = np.ones((2, COPY_BYTES), np.uint8)
    nbytes = block.weights * ADAMW_BYTES
    updates = {"AdamW": block.update(), "AdamW, two threads": block.update(threads=2)}
    sides = {name: lambda call=call: nbytes / seconds(call) for name, call in updates.items()}
    sides["copy"] = lambda: 2 * COPY_BYTES / seconds(lambda: np.copyto(target, source))
    rates = interleaved(sides, ROUNDS)
    for name in updates:
        Result(
            "kernels", f"update of {block.weights / 1e6:.1f} M weights, {settings}", name, "GB/s",
            rates[name] / 1e9, "np.copyto", rates[name] / rates["copy"], ROUNDS, at_least=0.6,
        ).print()  # fmt: skip


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
        for name, rows, size in (("softmax", 8192, 128), ("softmax", 2048, 1024)):
            workload = f"{name} [{rows}, {size}], {settings}"
            report(workload, "csrun", "PyTorch eager", softmax_calls(torch, name, rows, size))
            calls = softmax_calls(torch, f"log_{name}", rows, size)
            report(f"log-{workload}", "csrun", "PyTorch eager", calls)
        measure_attention(torch, settings)
        measure_library(torch)
        measure_memory(torch)
        report(f"gelu, {settings}", "exact", "by tanh", gelu_calls(), 2.0)
        for block in (FeedForward(1024, 384), FeedForward(512, 768)):
            measure_products(block, settings)
            workload = f"bias and tanh-gelu of {block.shapes}, {settings}"
            calls = activation_calls(torch, block) | {"least passes": least_activation(block)}
            report(workload, "csrun", "PyTorch eager", calls, 0.6)
            report(workload, "least passes", "PyTorch eager", calls)
        measure_adamw(FeedForward(64, 1024), settings)
        measure_matrix_products(settings)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1])
    else:
        with_and_without_openblas(__file__)
