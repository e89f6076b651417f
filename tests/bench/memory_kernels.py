"""Memory-bound kernels in machine code, one and two threads, compared with PyTorch and a copy.

PyTorch computes with as many threads; a copy is PyTorch's of as many bytes. Bytes per second count
each number that must be read or written once. Of one thread it is CPU time, of two wall time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Any

import numpy as np
from ffn import FACTOR, FeedForward
from result import Result, interleaved
from support.aligned_arrays import normal, zeros_of
from support.kernels import bound

from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import LOSS
from csrun.compiler.graph.kernel import Kernel, Phase
from csrun.compiler.kernels.dropout import DropoutMask
from csrun.compiler.kernels.normalization import BACKWARD, FORWARD, Norm
from csrun.compiler.kernels.softmax import Softmax
from csrun.compiler.kernels.softmax_cross_entropy import (
    LossOperands,
    LossSum,
    WideBackward,
    WideForward,
)

ROUNDS, CALLS = 9, 5  # of a round the best of so many calls counts
LEAST = 0.7  # of a copy's bytes a second
Call = Callable[[], Any]


@dataclass(frozen=True)
class Moving:
    """A kernel: our call by this many threads, PyTorch's, and the bytes that it moves.

    is_limited: whether memory is what limits it
    """

    name: str
    ours: Callable[[int], Call]
    theirs: Call
    nbytes: int
    is_limited: bool = True


def measure_memory(torch: Any) -> None:
    """Print all kernels, by one and by two threads."""
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for make in (_norms, _softmaxes, _gelu, _cross_entropy, _adamw, _dropout):
            for kernel in make(torch):
                _report(torch, kernel, threads)
    torch.set_num_threads(1)


def _report(torch: Any, kernel: Moving, threads: int) -> None:
    source = torch.ones(kernel.nbytes // 8)
    target = torch.empty_like(source)
    calls = {
        "machine code": kernel.ours(threads),
        "PyTorch eager": kernel.theirs,
        "copy": lambda: target.copy_(source),
    }
    clock = thread_time if threads == 1 else perf_counter
    sides = {name: lambda run=run: _seconds(run, clock) for name, run in calls.items()}
    times = interleaved(sides, ROUNDS)
    ours, rates = times["machine code"], {n: kernel.nbytes / t for n, t in times.items()}
    name = f"{kernel.name}, {threads} thread{'s' * (threads > 1)}"
    Result(
        "kernels", name, "machine code", "ms", ours * 1e3, "PyTorch eager",
        ours / times["PyTorch eager"], ROUNDS, at_most=1.0,
    ).print()  # fmt: skip
    Result(
        "kernels", name, "machine code", "GB/s", rates["machine code"] / 1e9, "copy",
        rates["machine code"] / rates["copy"], ROUNDS,
        at_least=LEAST if kernel.is_limited else None,
    ).print()  # fmt: skip


def _seconds(run: Call, clock: Callable[[], float]) -> float:
    times = []
    for _ in range(CALLS):
        started = clock()
        run()
        times.append(clock() - started)
    return min(times)


def _of_kernels(kernels: Sequence[Kernel], values: Mapping[str, Any]) -> Callable[[int], Call]:
    return lambda threads: bound(kernels, values, "llvm", threads)[0]


def _arrays(names: Sequence[str], *shape: int) -> list[Array]:
    return [Array(name, shape, "float32") for name in names]


def _norms(torch: Any, rows: int = 4096, size: int = 1024) -> list[Moving]:
    x, grad, out, dx = _arrays(("x", "grad", "out", "dx"), rows, size)
    mean, rstd = _arrays(("mean", "rstd"), rows)
    weight, bias, dw, db = _arrays(("weight", "bias", "dw", "db"), size)
    name = "cirh.native_layer_norm"
    forward = Norm("norm", (x, weight, bias), (out, mean, rstd), FORWARD[name], 1e-5, Phase.FORWARD)
    operands, kind = (grad, x, mean, rstd, weight), BACKWARD[f"{name}_backward"]
    backward = Norm("norm", operands, (dx, dw, db), kind, None, Phase.BACKWARD)
    values = {a.name: normal(*a.shape) for a in (x, grad, weight, bias, mean, rstd)}
    leaves = [torch.from_numpy(values[a.name]).requires_grad_() for a in (x, weight, bias)]
    function, plain = torch.nn.functional.layer_norm, [leaf.detach() for leaf in leaves]
    y, slope = function(leaves[0], (size,), *leaves[1:]), torch.from_numpy(values["grad"])
    again = lambda: torch.autograd.grad(y, leaves, slope, retain_graph=True)  # noqa: E731
    title, nbytes = f"layer norm [{rows}, {size}]", 4 * rows * size
    call = lambda: function(plain[0], (size,), *plain[1:])  # noqa: E731
    return [
        Moving(title, _of_kernels([forward], values), call, 2 * nbytes),
        Moving(f"{title}, gradients", _of_kernels([backward], values), again, 3 * nbytes),
    ]


def _softmaxes(torch: Any, rows: int = 4096, size: int = 1024) -> list[Moving]:
    x, grad, y, out = _arrays(("x", "grad", "y", "out"), rows, size, 1)
    leaf = torch.from_numpy(normal(rows, size)).requires_grad_()
    result, plain = torch.softmax(leaf, 1), leaf.detach()
    values = {"x": plain.numpy()[..., None], "grad": normal(rows, size, 1)}
    values["y"] = zeros_of(rows, size, 1)
    values["y"][...] = result.detach().numpy()[..., None]
    slope = torch.from_numpy(values["grad"][..., 0])
    forward = Softmax("softmax", "softmax", (x,), out, Phase.FORWARD)
    backward = Softmax("softmax", "softmax_backward", (grad, y), out, Phase.BACKWARD)
    again = lambda: torch.autograd.grad(result, leaf, slope, retain_graph=True)  # noqa: E731
    title, nbytes, call = f"softmax [{rows}, {size}]", 4 * rows * size, lambda: plain.softmax(1)
    ours = _of_kernels([forward], values)
    return [
        Moving(title, ours, call, 2 * nbytes, is_limited=False),  # by exponentials
        Moving(f"{title}, gradient", _of_kernels([backward], values), again, 3 * nbytes),
    ]


def _gelu(torch: Any) -> list[Moving]:
    """Bias and gelu by tanh; its slope is written for the backward pass."""
    block = FeedForward(2048, 512, "llvm")
    shape = block.rows, FACTOR * block.size
    leaves = [torch.from_numpy(a).requires_grad_() for a in (normal(*shape), normal(shape[1]))]
    slope = torch.from_numpy(normal(*shape))

    def theirs() -> None:
        y = torch.nn.functional.gelu(leaves[0] + leaves[1], approximate="tanh")
        torch.autograd.grad(y, leaves, slope)

    title, nbytes = f"bias, gelu and gradients {list(shape)}", 6 * 4 * shape[0] * shape[1]
    return [Moving(title, block.activation, theirs, nbytes)]


def _cross_entropy(torch: Any, rows: int = 256, classes: int = 50257) -> list[Moving]:
    logits, labels = (
        normal(rows, classes),
        np.random.default_rng(1).integers(0, classes, rows),
    )
    x, gradient = _arrays(("logits", "gradient"), rows, classes)
    of_labels = Array("labels", (rows,), "int64")
    parts = LossOperands(x, of_labels, -100, 0.0, None, True, "loss", "loss")
    forward = WideForward("loss", parts), LossSum("loss", parts, LOSS, None, "1")
    backward = WideBackward("loss", parts, repr(1 / rows), gradient)
    leaf, wanted = torch.from_numpy(logits).requires_grad_(), torch.from_numpy(labels)

    def theirs() -> None:
        torch.autograd.grad(torch.nn.functional.cross_entropy(leaf, wanted), leaf)

    ours = _of_kernels([*forward, backward], {"logits": logits, "labels": labels})
    title = f"cross entropy and gradient [{rows}, {classes}]"
    return [Moving(title, ours, theirs, 3 * 4 * rows * classes, is_limited=False)]


def _adamw(torch: Any) -> list[Moving]:
    block = FeedForward(64, 1024, "llvm")
    parameter = torch.nn.Parameter(torch.ones(block.weights))
    parameter.grad = torch.ones(block.weights)
    optimizer = torch.optim.AdamW([parameter], 1e-3, weight_decay=0.01, fused=True)
    title = f"AdamW of {block.weights / 1e6:.1f} M weights"
    return [Moving(title, block.update, optimizer.step, 28 * block.weights)]


def _dropout(torch: Any, *shape: int) -> list[Moving]:
    """A mask's draws, a byte each; PyTorch's dropout multiplies by it, too."""
    shape = shape or (8, 256, 1024)
    kernel = DropoutMask("dropout", Array("mask", shape, "bool"), 0.1, 3, 1)
    x = torch.ones(shape)
    ours = _of_kernels([kernel], {})
    call = lambda: torch.nn.functional.dropout(x, 0.1)  # noqa: E731
    return [Moving(f"dropout mask {list(shape)}", ours, call, x.numel(), is_limited=False)]


if __name__ == "__main__":
    import torch
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        measure_memory(torch)
