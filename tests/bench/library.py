"""Kernels of the library as machine code, compared with their NumPy form and PyTorch's eager one.

CPU time of one thread, ns an element.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from math import prod
from time import thread_time
from types import SimpleNamespace
from typing import Any

import numpy as np
from result import Result, interleaved
from support.kernels import bound

from csrun.cirh.ops.convolution import Windows
from csrun.compiler.emit.llvm.library import library_code
from csrun.compiler.emit.llvm.module import SharedCode, common_text, module_text
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.kernel import Kernel, Phase
from csrun.compiler.kernels.convolution import (
    Convolve,
    ConvolveBackwardInput,
    ConvolveBackwardWeight,
)
from csrun.compiler.kernels.dropout import DropoutMask
from csrun.compiler.kernels.embedding import Lookup, LookupBackward
from csrun.compiler.kernels.normalization import BACKWARD, FORWARD, Norm
from csrun.compiler.kernels.rotary import Rotary
from csrun.compiler.kernels.softmax import Softmax
from csrun.executable import StepState, machine_code
from csrun.executable.arrays import empty
from csrun.executable.products import EXPORTED, tile_of
from csrun.kernels import random, rotary

ROUNDS, SECONDS = 15, 0.02  # of a side in each round
VOCABULARY, TOKENS = 50257, 1024
SIDE, NUMPY, PEER = "machine code", "NumPy form", "PyTorch eager"
#: Images, maps, and what is not 3 by 3 windows at every pixel.
CONVOLUTIONS: tuple[tuple[tuple[int, int, int, int], int, dict[str, int]], ...] = (
    ((32, 3, 32, 32), 64, {}),
    ((32, 64, 32, 32), 64, {}),
    ((32, 128, 16, 16), 128, {}),
    ((32, 512, 4, 4), 512, {}),
    ((32, 64, 7, 7), 64, {}),
    ((32, 64, 32, 32), 128, {"stride": 2}),
    ((32, 64, 16, 16), 128, {"size": 1}),
    ((32, 256, 4, 4), 512, {"size": 1}),
    ((32, 128, 16, 16), 128, {"groups": 128}),
    ((32, 128, 16, 16), 128, {"groups": 128, "stride": 2}),
)
Call = Callable[[], Any]


def measure_library(torch: Any) -> None:
    """Print all kernels."""
    rows, size = 1024, 768
    for name in FORWARD:
        measure_norm(torch, name, rows, size)
    for name in ("softmax", "log_softmax"):
        measure_softmax(torch, name, 2048, 256)
    measure_embedding(torch, size)
    measure_dropout(torch, 4, 256, size)
    measure_rotary()
    for shape, maps, options in CONVOLUTIONS:
        measure_convolution(torch, shape, maps, **options)


def measure_norm(torch: Any, name: str, rows: int, size: int) -> None:
    """Print a norm's passes."""
    is_layer = name == "cirh.native_layer_norm"
    keys = ("weight", "bias") if is_layer else ("weight",)
    statistics = [_array(key, rows) for key in (("mean", "rstd") if is_layer else ("rrms",))]
    x, grad, weights = _array("x", rows, size), _array("grad", rows, size), _arrays(keys, size)
    out, slopes = _array("out", rows, size), [_array("dx", rows, size)]
    slopes += [_array(f"d{key}", size) for key in keys]
    forward = Norm("norm", (x, *weights), (out, *statistics), FORWARD[name], 1e-5, Phase.FORWARD)
    backward = Norm(
        "norm",
        (grad, x, *statistics, weights[0]),
        tuple(slopes),
        BACKWARD[f"{name}_backward"],
        None,
        Phase.BACKWARD,
    )
    values = {a.name: _normal(*a.shape) for a in (x, grad, *weights, *statistics)}
    leaves = [torch.from_numpy(values[a.name]).requires_grad_() for a in (x, *weights)]
    function = getattr(torch.nn.functional, "layer_norm" if is_layer else "rms_norm")
    y, slope = function(leaves[0], (size,), *leaves[1:]), torch.from_numpy(values["grad"])
    plain = [leaf.detach() for leaf in leaves]
    title = f"{'layer' if is_layer else 'RMS'} norm [{rows}, {size}]"
    report(title, forward, values, lambda: function(plain[0], (size,), *plain[1:]))
    again = lambda: torch.autograd.grad(y, leaves, slope, retain_graph=True)  # noqa: E731
    report(f"{title}, gradients", backward, values, again)


def measure_softmax(torch: Any, name: str, rows: int, size: int) -> None:
    """Print a softmax, and its gradient."""
    x, grad, y, out = _arrays(("x", "grad", "y", "out"), rows, size, 1)
    values = {a.name: _normal(*a.shape) for a in (x, grad)}
    values["y"] = _normal(*y.shape) - 6  # as logarithms are
    leaf = torch.from_numpy(values["x"][:, :, 0]).requires_grad_()
    result, slope = getattr(torch, name)(leaf, 1), torch.from_numpy(values["grad"][:, :, 0])
    plain, title = leaf.detach(), f"{name.replace('_', '-')} [{rows}, {size}]"
    forward = Softmax("softmax", name, (x,), out, Phase.FORWARD)
    report(title, forward, values, lambda: getattr(torch, name)(plain, 1))
    backward = Softmax("softmax", f"{name}_backward", (grad, y), out, Phase.BACKWARD)
    again = lambda: torch.autograd.grad(result, leaf, slope, retain_graph=True)  # noqa: E731
    report(f"{title}, gradient", backward, values, again)


def measure_embedding(torch: Any, size: int) -> None:
    """Print a lookup; and the table's gradient an element of the table, most of them zeros."""
    table, out, grad = (
        _array("w", VOCABULARY, size),
        _array("out", TOKENS, size),
        _array("grad", TOKENS, size),
    )
    indices = Array("indices", (TOKENS,), "int64")
    values = {a.name: _normal(*a.shape) for a in (table, grad)}
    values["indices"] = np.random.default_rng(1).integers(0, VOCABULARY, TOKENS)
    weight, numbers, slope = (torch.from_numpy(values[k]) for k in ("w", "indices", "grad"))
    report(
        f"embedding [{VOCABULARY}, {size}], {TOKENS} indices",
        Lookup("embedding", table, indices, out, True),
        values,
        lambda: torch.nn.functional.embedding(numbers, weight),
    )
    operator = torch.ops.aten.embedding_dense_backward
    report(
        f"embedding [{VOCABULARY}, {size}], gradient of the table",
        LookupBackward("embedding", grad, indices, table, -1),
        values,
        lambda: operator(slope, numbers, VOCABULARY, -1, False),
    )


def measure_dropout(torch: Any, *shape: int) -> None:
    """Print a mask's draws."""
    kernel = DropoutMask("dropout", Array("mask", shape, "bool"), 0.1, 3, 1)
    words = np.empty(kernel.scratch[0].shape, "u8")
    mask, step = np.empty(kernel.matrix.shape, bool), StepState(index=5, rows=shape[0])
    keys, peer = random.round_keys(7), torch.empty(shape)
    draw = random.MaskDraw(mask, words, random.threshold_of(kernel.rate), kernel.stream, keys)
    numpy_form = lambda: draw(step)  # noqa: E731
    call = machine_call(kernel, {}, step)
    _report(
        f"dropout mask {list(shape)}", prod(shape), call, numpy_form, lambda: peer.bernoulli_(0.9)
    )


def measure_convolution(
    torch: Any,
    shape: tuple[int, int, int, int],
    maps: int,
    size: int = 3,
    stride: int = 1,
    groups: int = 1,
) -> None:
    """Print a convolution without bias and its two gradients."""
    windows = Windows((size, size), (stride, stride), (size // 2, size // 2))
    places = shape[0], maps, *windows.over(shape[2:])
    x, dx, y, dy = _array("x", *shape), _array("dx", *shape), *_arrays(("y", "dy"), *places)
    w, dw = _arrays(("w", "dw"), maps, shape[1] // groups, size, size)
    values = {a.name: _normal(*a.shape) for a in (x, w, dy)}
    images, weight, slope = (torch.from_numpy(values[a.name]) for a in (x, w, dy))
    options = [stride] * 2, [size // 2] * 2, [1, 1], False, [0, 0], groups

    def gradient(*wanted: bool) -> Call:
        operator = torch.ops.aten.convolution_backward
        return lambda: operator(slope, images, weight, None, *options, wanted)

    function = torch.nn.functional.conv2d
    title = f"convolution {list(shape)} by {list(w.shape)}, stride {stride}"
    report(
        title,
        Convolve("conv", x, w, y, windows, groups, None),
        values,
        lambda: function(images, weight, None, *options[:3], groups),
    )
    of_images = ConvolveBackwardInput("conv", dx, w, dy, windows, groups)
    report(f"{title}, gradient of images", of_images, values, gradient(True, False, False))
    of_weight = ConvolveBackwardWeight("conv", x, dw, dy, windows, groups)
    report(f"{title}, gradient of the weight", of_weight, values, gradient(False, True, False))


def measure_rotary() -> None:
    """Print rotations of heads in a joined projection; PyTorch has no operator for them."""
    batch, length, heads, size = 4, 256, 16, 64
    whole = _array("x", batch, length, 3, heads, size)
    x, out = whole.selected(2, 0), _array("out", batch, length, heads, size)
    for is_interleaved, what in ((True, "pairs"), (False, "halves")):
        kernel = Rotary("rotary", x, out, 1, 32, 1e4, is_interleaved, False, Phase.FORWARD)
        values = {"x": _normal(*whole.shape)}
        report(f"rotary {what} {list(out.shape)}, 32 of {size}", kernel, values, None)


def report(workload: str, kernel: Kernel, values: Mapping[str, Any], peer: Call | None) -> None:
    """Print the time of a kernel's forms, an element of its first result."""
    run, _ = bound([kernel], values)
    _report(workload, prod(kernel.writes[0].shape), machine_call(kernel, values), run, peer)


def _report(
    workload: str, elements: int, machine: Call, numpy_form: Call, peer: Call | None
) -> None:
    calls = {SIDE: machine, NUMPY: numpy_form} | ({} if peer is None else {PEER: peer})
    sides = {name: lambda run=run: cpu_seconds(run) for name, run in calls.items()}
    times = interleaved(sides, ROUNDS)
    for other in [name for name in calls if name != SIDE]:
        Result(
            "kernels", f"{workload}, CPU time", SIDE, "ns",
            times[SIDE] / elements * 1e9, other, times[SIDE] / times[other], ROUNDS,
        ).print()  # fmt: skip


def cpu_seconds(run: Call) -> float:
    """The least CPU time of a call, of those in a while."""
    times, began = list[float](), thread_time()
    while not times or thread_time() - began < SECONDS:
        started = thread_time()
        run()
        times.append(thread_time() - started)
    return min(times)


def machine_call(kernel: Kernel, values: Mapping[str, Any], step: StepState | None = None) -> Call:
    """The call of a kernel's machine code, over separate arrays."""
    code = library_code(kernel, "kernel")
    assert code is not None, "it has machine code"
    text = module_text([SharedCode(code, "", [])])
    products = machine_code.build(common_text(tile_of(machine_code.host())))
    machine = machine_code.MachineCode([products, machine_code.build(text)], EXPORTED)
    memory = {a.name: np.zeros(a.whole, a.dtype) for a in code.parameters}
    for name, value in values.items():
        if name in memory:
            memory[name][...] = value
    scope = {"step": step, "runtime": SimpleNamespace(seed=7)}
    numbers = np.array([*(eval(text, scope) for text in code.numbers), 0.0])
    scratch, parts = (empty(n + 64) for n in (code.scratch_bytes, code.parts_bytes))
    constants = _constants(kernel) if isinstance(kernel, Rotary) else ()
    addresses = [
        *(
            memory[a.name].ctypes.data + a.offset * np.dtype(a.dtype).itemsize
            for a in code.parameters
        ),
        *(each.ctypes.data for each in (*constants, numbers, scratch, parts)),
    ]
    arguments = (ctypes.c_void_p * len(addresses))(*addresses)
    place, rows = ctypes.addressof(arguments), code.rows
    run = machine.function("kernel", ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    begin, before = None, code.begin_rows
    if before:
        begin = machine.function("kernel.begin", ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    end = machine.function("kernel.end", ctypes.c_void_p) if code.has_epilogue else None
    owned = (machine, arguments, memory, numbers, scratch, parts, constants)

    def call(_: Any = owned) -> None:
        if begin is not None:
            begin(place, 0, before)
        run(place, 0, rows)
        if end is not None:
            end(place)

    return call


def _constants(kernel: Rotary) -> Sequence[Any]:
    axes = len(kernel.x.shape) - 2 - kernel.dim
    rotation_factors = rotary.rotation_factors(
        kernel.x.shape[kernel.dim], kernel.size, kernel.base, False, kernel.x.dtype, axes
    )
    return (
        (rotation_factors,) if kernel.is_interleaved else rotary.cosines_and_sines(rotation_factors)
    )


def _array(name: str, *shape: int) -> Array:
    return Array(name, shape, "float32")


def _arrays(names: Sequence[str], *shape: int) -> list[Array]:
    return [_array(name, *shape) for name in names]


def _normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")
