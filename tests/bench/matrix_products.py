"""Products of csrun's machine code compared with those of OpenBLAS: one thread, its CPU time."""

from collections.abc import Callable
from ctypes import addressof, c_int64, c_void_p
from time import thread_time

import numpy as np
from result import Result, interleaved
from support.aligned_arrays import normal, zeros_of
from support.matrix_products import machine_of, plan_of

from csrun.executable import machine_code
from csrun.executable.products import SCRATCH_BYTES, tile_of

ROUNDS = 21
FLOPS = 5e7  # of a measurement, at least: some 0.6 ms
AT_LEAST = 0.97  # of OpenBLAS, of products of more than 0.1 GFLOP
Call = Callable[[], object]


def operands() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A feed-forward block of GPT and its gradients, layers of FC-MNIST, heads of attention."""
    x, up, down, h = (normal(*s) for s in ((1024, 384), (384, 1536), (1536, 384), (1024, 1536)))
    pixels, first, y, second = (normal(*s) for s in ((128, 784), (784, 50), (128, 50), (50, 50)))
    q, k, weights = normal(24, 256, 64), normal(24, 256, 64), normal(24, 256, 256)
    return {
        "[1024, 384] x [384, 1536]": (x, up),
        "[1024, 1536] x [1536, 384]": (h, down),
        "gradient of the input, [1024, 1536] x [384, 1536]^T": (h, up.T),
        "gradient of the weights, [1024, 384]^T x [1024, 1536]": (x.T, h),
        "[128, 784] x [784, 50]": (pixels, first),
        "[128, 784]^T x [128, 50]": (pixels.T, y),
        "[128, 50] x [50, 50]": (y, second),
        "24 heads, [256, 64] x [256, 64]^T": (q, k.transpose(0, 2, 1)),
        "24 heads, [256, 256] x [256, 64]": (weights, q),
    }


def product_calls(a: np.ndarray, b: np.ndarray) -> dict[str, Call]:
    """Both sides of a product; a step of csrun's is one call of all of its rows."""
    out, other = (zeros_of(*a.shape[:-1], b.shape[-1]) for _ in range(2))
    tile = tile_of(machine_code.host())
    packed = zeros_of(plan_of(a, b, out, False, 0, tile, threads=1).packed_bytes // 4)
    scratch = zeros_of(SCRATCH_BYTES // 4)
    steps, memory = [], [out, packed, scratch]
    for step in plan_of(a, b, out, False, packed.ctypes.data, tile, threads=1).steps:
        words = (c_int64 * len(step.words))(scratch.ctypes.data, *step.words[1:])
        run = machine_of(tile).function(step.function, c_void_p, c_int64, c_int64)
        steps.append((run, addressof(words), step.rows))
        memory.append(words)

    def ours(memory: list[object] = memory) -> None:
        for run, arguments, rows in steps:
            run(arguments, 0, rows)

    return {"csrun": ours, "OpenBLAS": lambda: np.matmul(a, b, out=other)}


def measure_matrix_products(settings: str) -> None:
    """Print GFLOP/s of each product over those of OpenBLAS."""
    for name, (a, b) in operands().items():
        flops = 2.0 * a.size * b.shape[-1]
        repeats = int(-(-FLOPS // flops))

        def rate(run: Call, repeats: int = repeats, flops: float = flops) -> float:
            run()  # the other side's arrays are in the caches
            started = thread_time()
            for _ in range(repeats):
                run()
            return flops * repeats / (thread_time() - started) / 1e9

        calls = product_calls(a, b).items()
        rates = interleaved({n: lambda run=run: rate(run) for n, run in calls}, ROUNDS)
        Result(
            "kernels", f"{name}, {settings}", "csrun", "GFLOP/s", rates["csrun"], "OpenBLAS",
            rates["csrun"] / rates["OpenBLAS"], ROUNDS,
            at_least=AT_LEAST if flops > 1e8 else None,
        ).print()  # fmt: skip
