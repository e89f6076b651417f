"""Machine code of pooling, against PyTorch."""

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.library_code import LibraryCase, array, normal, wide

from csrun.cirh.ops.convolution import Windows
from csrun.compiler.graph.kernel import Phase
from csrun.compiler.kernels.pooling import AveragePool, MaxPool

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the kernels")


WINDOWS = [
    Windows((2, 2), (2, 2), (0, 0)),
    Windows((3, 3), (2, 1), (1, 1)),
    Windows((2, 3), (1, 3), (1, 0), (2, 1)),
    Windows((5, 39), (1, 1), (0, 0)),
    Windows((2, 2), (1, 5), (0, 1)),
    Windows((3, 3), (2, 2), (1, 1)),
    Windows((3, 5), (1, 1), (1, 2)),
]


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_max_pooling_and_its_gradient(windows):
    x = normal(3, 5, 41)
    x[0, 1, 2], x[0, 2, 2], x[1, :3] = np.nan, np.nan, -np.inf
    leaf = torch.from_numpy(x).requires_grad_()
    options = windows.size, windows.stride, windows.padding, windows.dilation
    pooled = torch.nn.functional.max_pool2d(leaf, *options)
    maps = tuple(pooled.shape)
    image, largest = array("x", 3, 5, 41), array("out", *maps)
    offsets = array("offsets", *maps, dtype="int32")
    forward = MaxPool("pool", (image,), (largest, offsets), windows, Phase.FORWARD)
    found = LibraryCase(forward, {"x": x}).in_all_ways()
    np.testing.assert_array_equal(found["out"], pooled.detach())
    grad = normal(*maps, seed=1)
    pooled.backward(torch.from_numpy(grad))
    backward = MaxPool("pool", (array("g", *maps), offsets), (image,), windows, Phase.BACKWARD)
    values = {"g": grad, "offsets": found["offsets"]}
    found = LibraryCase(backward, values).in_all_ways()
    np.testing.assert_allclose(found["x"], leaf.grad, rtol=1e-6, atol=1e-6)


def test_a_window_outside_of_the_image_has_no_gradient():
    """Unlike in PyTorch; the second of the three windows covers columns -1 and 4."""
    windows = Windows((1, 2), (1, 1), (0, 2), (1, 5))
    x, grad = normal(3, 5, 4), normal(3, 5, 3, seed=1)
    image, largest = array("x", 3, 5, 4), array("out", 3, 5, 3)
    offsets = array("offsets", 3, 5, 3, dtype="int32")
    forward = MaxPool("pool", (image,), (largest, offsets), windows, Phase.FORWARD)
    found = LibraryCase(forward, {"x": x}).in_all_ways()
    wanted = np.stack([x[..., 3], np.full((3, 5), -np.inf), x[..., 0]], axis=-1)
    np.testing.assert_array_equal(found["out"], wanted)
    backward = MaxPool("pool", (array("g", 3, 5, 3), offsets), (image,), windows, Phase.BACKWARD)
    found = LibraryCase(backward, {"g": grad, "offsets": found["offsets"]}).in_all_ways()["x"]
    wanted = np.zeros((3, 5, 4), "float32")
    wanted[..., 3], wanted[..., 0] = grad[..., 0], grad[..., 2]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("counts_padding", [True, False])
@pytest.mark.parametrize("windows", [w for w in WINDOWS if w.dilation == (1, 1)], ids=str)
def test_average_pooling_and_its_gradient(windows, counts_padding):
    x = normal(3, 5, 41)
    (leaf,) = (value.requires_grad_() for value in wide(x))
    options = {"count_include_pad": counts_padding}
    pooled = torch.nn.functional.avg_pool2d(
        leaf, windows.size, windows.stride, windows.padding, **options
    )
    image, means = array("x", 3, 5, 41), array("out", *pooled.shape)
    forward = AveragePool("pool", (image,), (means,), windows, Phase.FORWARD, counts_padding)
    found = LibraryCase(forward, {"x": x}).in_all_ways()["out"]
    np.testing.assert_allclose(found, pooled.detach(), rtol=1e-6, atol=1e-6)
    grad = normal(*pooled.shape, seed=1)
    pooled.backward(*wide(grad))
    backward = AveragePool("pool", (means,), (image,), windows, Phase.BACKWARD, counts_padding)
    found = LibraryCase(backward, {"out": grad}).in_all_ways()["x"]
    np.testing.assert_allclose(found, leaf.grad, rtol=1e-6, atol=1e-6)
