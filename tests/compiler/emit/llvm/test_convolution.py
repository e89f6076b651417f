"""Machine code of convolutions and their gradients, against PyTorch; memory ends at guard pages."""

from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.library_code import LibraryCase, array, normal, wide
from support.programs import Machine, options_of

from csrun import nn
from csrun.base.mode import RunMode
from csrun.cirh.ops.convolution import Windows
from csrun.compiler import compile_model
from csrun.compiler.emit.llvm.library import library_code
from csrun.compiler.kernels.convolution import (
    Convolve,
    ConvolveBackwardInput,
    ConvolveBackwardWeight,
)
from csrun.executable.products import AVX2, AVX512
from csrun.nn.tracer import Tracer

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the kernels")


@dataclass(frozen=True)
class Case:
    """Images [N, C, H, W], number of output channels, and windows."""

    shape: tuple[int, int, int, int]
    maps: int
    size: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def windows(self):
        return Windows(self.size, self.stride, self.padding, self.dilation)

    @property
    def weight(self):
        return (self.maps, self.shape[1] // self.groups, *self.size)

    @property
    def places(self):
        return (self.shape[0], self.maps, *self.windows.over(self.shape[2:]))


CASES = {
    "plain": Case((3, 2, 7, 6), 4),
    "padded": Case((2, 5, 28, 28), 9, padding=(1, 1)),
    "row_of_16": Case((3, 3, 5, 16), 7, padding=(1, 1)),
    "strided": Case((3, 3, 9, 8), 4, (3, 2), (2, 3), (1, 0)),
    "stride_of_2": Case((2, 7, 32, 32), 13, stride=(2, 2), padding=(1, 1)),
    "stride_of_5": Case((2, 3, 40, 41), 5, (5, 5), (5, 5)),
    "pixels_nobody_sees": Case((3, 1, 8, 8), 2, (2, 2), (3, 3)),
    "dilated": Case((3, 2, 9, 9), 3, dilation=(2, 3), padding=(2, 3)),
    "dilated_and_strided": Case((2, 2, 20, 23), 3, (3, 4), (2, 2), (2, 3), (3, 3)),
    "groups": Case((5, 6, 5, 5), 4, groups=2, padding=(1, 1)),
    "by_channel": Case((3, 4, 6, 6), 4, groups=4, padding=(1, 1)),
    "by_channel_strided": Case((2, 20, 17, 18), 20, stride=(2, 2), padding=(1, 1), groups=20),
    "by_channel_long_rows": Case((1, 3, 4, 150), 3, (3, 5), groups=3),
    "by_channel_dilated": Case((2, 3, 9, 9), 3, dilation=(2, 2), padding=(2, 2), groups=3),
    "by_channel_padded": Case((2, 3, 4, 5), 3, padding=(3, 4), groups=3),
    "two_maps_a_channel": Case((3, 4, 6, 6), 8, groups=4),
    "pixels": Case((3, 5, 4, 4), 6, (1, 1)),
    "many_pixels": Case((1, 70, 30, 30), 40, (1, 1)),
    "pixels_in_groups": Case((3, 6, 4, 4), 4, (1, 1), groups=2),
    "pixels_strided": Case((3, 3, 5, 5), 4, (1, 1), (2, 2)),
    "pixels_padded": Case((3, 3, 4, 4), 4, (1, 1), padding=(1, 1)),
    "one_place": Case((3, 3, 3, 3), 5),
    "one_channel": Case((3, 1, 5, 1), 1, (3, 1)),
    "mostly_padding": Case((3, 2, 1, 2), 2, (5, 5), (2, 2), (4, 4)),
    "large_windows": Case((1, 4, 20, 20), 3, (19, 20)),
    "one_sample": Case((1, 3, 50, 50), 18, (7, 7), (2, 2), (3, 3)),
    "long_rows": Case((1, 2, 5, 700), 3, padding=(1, 1)),
    "sound": Case((2, 3, 1, 9001), 4, (1, 10), (1, 5), (0, 3)),
    "many_channels": Case((5, 130, 6, 6), 110, padding=(1, 1)),
    "many_samples": Case((40, 3, 7, 7), 20, padding=(1, 1)),
}


def kernels(case, bias=True, adds=False):
    """Kernels of convolution, input gradient and weight gradient."""
    images, weight, maps = (
        array("x", *case.shape),
        array("w", *case.weight),
        array("y", *case.places),
    )
    grad, dx, dw = array("dy", *case.places), array("dx", *case.shape), array("dw", *case.weight)
    windows, groups = case.windows, case.groups
    return (
        Convolve(
            "c", images, weight, maps, windows, groups, array("b", case.maps) if bias else None
        ),
        ConvolveBackwardInput("c", dx, weight, grad, windows, groups),
        ConvolveBackwardWeight("c", images, dw, grad, windows, groups, adds),
    )


def values_of(case):
    values = {"x": normal(*case.shape), "w": normal(*case.weight), "b": normal(case.maps)}
    return values | {"dy": normal(*case.places), "dw": normal(*case.weight, seed=1)}


def wanted(case, values):
    """Expected outputs and gradients, in float64."""
    leaves = [v.requires_grad_() for v in wide(*(values[k] for k in "xwb"))]
    options = case.stride, case.padding, case.dilation, case.groups
    maps = torch.nn.functional.conv2d(*leaves, *options)
    maps.backward(*wide(values["dy"]))
    return maps.detach().numpy(), leaves[0].grad.numpy(), leaves[1].grad.numpy()


def near(found, value, terms):
    scale = max(np.abs(value).max(), 1.0)
    np.testing.assert_allclose(found, value, rtol=0, atol=4e-7 * scale * max(terms, 4) ** 0.5)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_convolution_and_its_gradients(case):
    values = values_of(case)
    maps, images, weight = wanted(case, values)
    forward, of_images, of_weight = kernels(case)
    near(LibraryCase(forward, values).in_all_ways()["y"], maps, 9)
    near(LibraryCase(of_images, values).in_all_ways()["dx"], images, 9)
    near(LibraryCase(of_weight, values).in_all_ways()["dw"], weight, case.places[2])


@pytest.mark.parametrize("name", ["plain", "by_channel", "many_channels", "groups"])
def test_no_bias_and_added_gradients(name):
    case = CASES[name]
    values = values_of(case)
    forward, _, of_weight = kernels(case, bias=False, adds=True)
    maps, _, weight = wanted(case, values | {"b": np.zeros(case.maps, "float32")})
    near(LibraryCase(forward, values).in_all_ways()["y"], maps, 9)
    found = LibraryCase(of_weight, values).in_all_ways()["dw"]
    near(found, weight + values["dw"], case.places[2])


def test_what_is_not_finite_stays_in_its_windows():
    case = CASES["padded"]
    values = values_of(case)
    values["x"][0, 1, 5, 5], values["x"][1, 2, 27, 0] = np.inf, np.nan
    found = LibraryCase(kernels(case)[0], values).run()["y"]
    seen = np.zeros(case.places, bool)
    seen[0, :, 4:7, 4:7] = seen[1, :, 26:, :2] = True
    np.testing.assert_array_equal(np.isfinite(found), ~seen)


@pytest.mark.parametrize("name", ["padded", "row_of_16", "stride_of_2", "many_channels", "pixels"])
def test_tiles_of_products_change_no_bit(name, monkeypatch):
    case, found = CASES[name], []
    values = values_of(case)
    for tile in (AVX2, AVX512):
        for module in ("csrun.compiler.emit.llvm.convolution", "support.library_code"):
            monkeypatch.setattr(f"{module}.tile_of", lambda target, tile=tile: tile)
        found.append([LibraryCase(kernel, values).run() for kernel in kernels(case)])
    for narrow, wide_one in zip(*found, strict=True):
        for key, value in narrow.items():
            np.testing.assert_array_equal(wide_one[key], value)


def test_threads_change_no_bit(tmp_path):
    """Three training steps of a network with every kind of convolution."""
    with Tracer("float32") as tracer:
        x = tracer.input("images", (6, 3, 20, 20), "float32")
        labels = tracer.input("labels", (6,), "int32")
        x = nn.relu(nn.Conv2D(16, 3, padding=1)(x))
        x = nn.relu(nn.Conv2D(16, 3, padding=1, groups=16)(x))
        x = nn.relu(nn.Conv2D(32, 3, stride=2, groups=4)(nn.Conv2D(24, 1)(x)))
        loss = nn.softmax_cross_entropy(nn.Dense(5)(nn.flatten(x)), labels)
        train_op = nn.SGD(0.01).minimize(loss)
        module = tracer.finish(RunMode.TRAIN, loss, train_op, [])
    executable = compile_model(module, tmp_path, options_of(kernels="llvm")).executable
    machine_coded = [name for name in executable.kernels.manifest.kernels if "conv" in name]
    assert len(machine_coded) == 11  # the first one has no gradient of images
    batch = normal(6, 3, 20, 20), np.arange(6, dtype="int32") % 5
    found = []
    for threads in (1, 2, 3):
        machine = Machine(executable, {}, threads)
        found.append([machine.train(batch)[0] for _ in range(3)] + [machine.store.tobytes()])
    assert found[0] == found[1] == found[2]


LONG = 1 << 23  # pixels of a row, for which a thread has no scratch


def test_what_has_no_machine_code():
    case = CASES["plain"]
    windows, groups = case.windows, case.groups
    arrays = [array("x", *case.shape), array("w", *case.weight), array("y", *case.places)]
    doubles = [array(a.name, *a.shape, dtype="float64") for a in arrays]
    assert library_code(Convolve("c", *doubles, windows, groups, None), "kernel") is None
    wide_rows = [
        array(name, 1, 1, 1, size) for name, size in zip("xwy", (LONG, 1, LONG), strict=True)
    ]
    kernel = Convolve("c", *wide_rows, Windows((1, 1), (1, 1), (0, 0)), 1, None)
    assert library_code(kernel, "kernel") is None
    turned = array("x", 3, 7, 6, 2).permuted((0, 3, 1, 2))
    assert library_code(Convolve("c", turned, *arrays[1:], windows, groups, None), "kernel") is None
