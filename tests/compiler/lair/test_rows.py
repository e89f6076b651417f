"""Loops over the rows of several leading axes, at any tile size, against PyTorch."""

from time import process_time

import numpy as np
import pytest
from support.programs import Machine, options_of

from csrun import nn
from csrun.base.mode import RunMode
from csrun.cirh.ops.reductions import SumOp
from csrun.compiler import compile_model
from csrun.compiler.lair import Generated, cluster, loop
from csrun.compiler.matching import match_kernels
from csrun.compiler.passes import run_passes
from csrun.executable import program_functions, row_tiles
from csrun.nn.initializers import zeros
from csrun.nn.tracer import Tracer

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the arithmetic")
pytestmark = pytest.mark.usefixtures("no_texts")  # compiles of which nobody reads a text

B, T, D, HEADS = 3, 5, 8, 2


class Ours:
    gelu, sigmoid = map(staticmethod, (nn.gelu, nn.sigmoid))

    def parameter(self, name, shape):
        with nn.scope(name):
            return self.x.tracer.parameter("values", shape, zeros(shape))

    def sum(self, x, dims, keepdim):
        return x.tracer.emit(SumOp, x, dims=dims, keepdim=keepdim)

    def view(self, x, shape):
        return nn.reshape(x, shape)

    def permuted(self, x, dims):
        return nn.transpose(x, dims)


class Theirs:
    gelu, sigmoid = torch.nn.functional.gelu, torch.sigmoid

    def __init__(self, parameters):
        self.parameters = {n: torch.tensor(v, requires_grad=True) for n, v in parameters.items()}

    def parameter(self, name, shape):
        return next(p for n, p in self.parameters.items() if name in n)

    def sum(self, x, dims, keepdim):
        return x.sum(dims, keepdim=keepdim)

    def view(self, x, shape):
        return x.reshape(shape)

    def permuted(self, x, dims):
        return x.permute(dims)


def of_positions(f, x):
    """Table shared by all samples, so that its rows repeat."""
    return f.gelu(x + f.parameter("table", (T, D))) * f.parameter("wide", (D,))


def of_samples(f, x):
    """A number per sample keeps the row loop separate from that of positions."""
    return x * f.sigmoid(f.sum(x, (1, 2), True)) + f.parameter("own", (B, 1, D))


def of_heads(f, x):
    """[B, T, D] and [B T, H, D / H] have the same rows, unless axes are permuted."""
    heads = f.sigmoid(f.view(f.gelu(x), (B * T, HEADS, D // HEADS)))
    turned = f.permuted(f.view(heads, (B, T, HEADS, D // HEADS)), (0, 2, 1, 3))
    return f.view(f.permuted(f.gelu(turned) + turned, (0, 2, 1, 3)), (B, T, D))


def of_sums(f, x):
    """Sums over the last axis, the middle axis, the first axis and all but the last."""
    y = f.gelu(x)
    return (
        y / (1.0 + f.sum(y * y, (2,), True))
        + f.sum(y, (1,), True)
        + f.sum(y, (0,), True)
        + f.sum(y, (0, 1), False)
    )


def of_squares(f, x):
    """A value and its own transpose: the sum must not overwrite the value."""
    squares = f.view(f.gelu(x), (B * T * D // 4, 2, 2))
    return f.view(squares + f.permuted(squares, (0, 2, 1)), (B, T, D))


CASES = (of_positions, of_samples, of_heads, of_sums, of_squares)


def trace(case):
    ours = Ours()
    with Tracer("float64") as tracer:
        ours.x = x = tracer.input("features", (B, T, D), "float64")
        start = x * ours.parameter("start", (D,))
        z = case(ours, start)
        labels = tracer.input("labels", (B, T), "int32")
        loss = nn.softmax_cross_entropy(z, labels)
        return tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [("z", z)])


@pytest.mark.parametrize("long_row", [1, 4096])
@pytest.mark.parametrize("tile_bytes", [1, 400, 1500, 1 << 20])
@pytest.mark.parametrize("case", CASES)
def test_a_step_is_pytorchs(tmp_path, monkeypatch, case, tile_bytes, long_row):
    monkeypatch.setattr(loop, "TILE_BYTES", tile_bytes)
    monkeypatch.setattr(cluster, "LONG_ROW", long_row)
    executable = compile_model(trace(case), tmp_path, options_of()).executable
    random = np.random.default_rng(3)
    parameters = {p.name: random.standard_normal(p.shape) for p in executable.plan.parameters}
    features = random.standard_normal((B, T, D))
    labels = random.integers(0, D, (B, T)).astype(np.int32)
    machine = Machine(executable, parameters)
    loss, gradients = machine.train((features, labels))
    peer = Theirs(parameters)
    start = torch.tensor(features) * peer.parameter("start", (D,))
    z = case(peer, start)
    expected = torch.nn.functional.cross_entropy(
        z.reshape(B * T, D), torch.tensor(labels).reshape(B * T).long()
    )
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(machine.output("z"), z.detach(), rtol=1e-11, atol=1e-12)
    for name, tensor in peer.parameters.items():
        np.testing.assert_allclose(gradients[name], tensor.grad, rtol=1e-9, atol=1e-11)


def kernels_of(module):
    run_passes(module)
    return [k for k in match_kernels(module).kernels if isinstance(k, Generated)]


def test_a_tile_is_of_positions_and_not_of_samples(monkeypatch):
    monkeypatch.setattr(loop, "TILE_BYTES", 400)
    monkeypatch.setattr(cluster, "LONG_ROW", D)
    kernel = next(k for k in kernels_of(trace(of_positions)) if k.scratch)
    assert kernel.loop.rows == B * T
    assert all(array.shape[0] < T for array in kernel.scratch)


def test_long_rows_are_cut(monkeypatch):
    monkeypatch.setattr(loop, "TILE_BYTES", 400)
    monkeypatch.setattr(cluster, "LONG_ROW", D - 1)
    kernel = next(k for k in kernels_of(trace(of_positions)) if k.scratch)
    assert kernel.loop.rows == B * T * D
    assert all(array.shape[0] < T * D for array in kernel.scratch)


def test_pieces_end_where_an_array_begins_again():
    long, short = np.arange(6), np.arange(3)
    pieces = row_tiles(6, 2, [long, short], [np.zeros(2)])
    assert [a.tolist() for _, a, _, _ in pieces] == [[0, 1], [2], [3, 4], [5]]
    assert [b.tolist() for _, _, b, _ in pieces] == [[0, 1], [2], [0, 1], [2]]
    assert [len(c) for _, _, _, c in pieces] == [2, 1, 2, 1]


def long_sum(count):
    """Cluster of many operators that read one another at long distances."""
    with Tracer("float32") as tracer:
        x = tracer.input("features", (4, 6), "float32")
        values = [x, x * 2.0]
        while len(values) < count:
            values.append(values[-1] * 0.5 + values[len(values) // 2])
        module = tracer.finish(RunMode.PREDICT, None, None, [("z", values[-1])])
    run_passes(module)
    return module


def seconds_to_match(count):
    module = long_sum(count)
    started = process_time()
    kernels = match_kernels(module).kernels
    assert len([k for k in kernels if isinstance(k, Generated)]) == 1
    return process_time() - started


def test_the_time_to_make_clusters_grows_as_the_operators():
    """Fastest of several measurements, since other processes may slow some of them down."""
    few = seconds_to_match(250)
    most = 8 * few  # 16 times where each operator looks at all before it
    assert any(seconds_to_match(1000) < most for _ in range(5))


@pytest.mark.parametrize(("rows", "tile"), [(6, 2), (7, 3), (6, 5)])
def test_views_that_are_not_kept_are_the_same_each_time(monkeypatch, rows, tile):
    long, scratch = np.arange(float(rows)), np.zeros(tile)
    short = long[: rows // 2] if rows % 2 == 0 else long
    kept = row_tiles(rows, tile, [long, short], [scratch])
    monkeypatch.setattr(program_functions, "MOST_KEPT_TILES", 0)
    made = row_tiles(rows, tile, [long, short], [scratch])
    assert isinstance(kept, list)
    assert not isinstance(made, list)
    for again in (list(made), list(made)):
        assert [piece for piece, *_ in again] == [piece for piece, *_ in kept]
        for ours, theirs in zip(again, kept, strict=True):
            for a, b in zip(ours[1:], theirs[1:], strict=True):
                assert a.__array_interface__ == b.__array_interface__
