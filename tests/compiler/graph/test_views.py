"""Views in programs: read in place, or copied to contiguous memory; against PyTorch."""

import pytest
from support.autograd import check

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the views")

B, T, D = 4, 3, 8


def heads(f, x):
    """[B, T, D] -> [B, heads, T, D / heads]."""
    return f.transpose(f.reshape(x, (B, T, 2, -1)), (0, 2, 1, 3))


def attention_of_slices(f, x):
    qkv = x @ f.p("qkv", D, 3 * D)
    q, k, v = (heads(f, qkv[..., at : at + D]) for at in (0, D, 2 * D))
    scores = f.exp(f.sigmoid(q @ f.transpose(k, (0, 1, 3, 2))))
    mixed = (scores / f.sum(scores, -1, True)) @ v
    return f.reshape(f.transpose(mixed, (0, 2, 1, 3)), (B * T, D)) @ f.p("out", D, 2)


def attention_of_selections(f, x):
    qkv = f.reshape(x @ f.p("qkv", D, 3 * D), (B, T, 3, 2, D // 2))
    q, k, v = f.transpose(qkv, (2, 0, 3, 1, 4))
    return f.sigmoid(q @ f.transpose(k, (0, 1, 3, 2))) @ v


def attention_and_norms(f, x):
    """Attention and norms of a transformer, computed on views."""
    h = f.transpose(f.norm(f.transpose(x, (1, 0, 2)), "one"), (1, 0, 2))
    q, k, v = (heads(f, (h @ f.p(name, D, D))) for name in "qkv")
    mixed = f.transpose(f.attention(q, k, v), (0, 2, 1, 3))
    return f.norm(f.reshape(mixed, (B, T, D))[:, ::2, :5], "two") * f.p("w", 5)


def products_of_activations(f, x):
    h = f.sigmoid(x[:, 0] @ f.p("w", D, D))
    scores = h @ f.transpose(x[:, 1] @ f.p("v", D, D))
    return f.sigmoid(f.transpose(f.sigmoid(scores)) @ h) @ f.p("u", D)


def products_that_broadcast(f, x):
    w = f.p("w", 2, 1, D, 3)
    return f.transpose(f.sigmoid(x @ w), (2, 0, 1, 3)) @ f.p("v", 3)


def vectors(f, x):
    a, b = f.sigmoid(x[0, 0] @ f.p("w", D, T)), f.p("b", D)
    return f.sigmoid(x @ b) @ f.p("c", T, 2) + f.sigmoid(a @ x[1]) @ b


def transposed_and_added(f, x):
    y = x[0] @ f.p("w", D, T)
    return f.sigmoid(y + f.transpose(y)) * f.transpose(y)


def repeated(f, x):
    row = f.sigmoid(x[:, :1] * f.p("w", D))
    wide = f.broadcast_to(row, (2, B, T, D))
    return f.sum(f.sigmoid(wide), (0, 2)) @ f.p("v", D, D) + f.broadcast_to(x[0, 0, :1], (D,))


def a_repeated_matrix(f, x):
    table = f.broadcast_to(f.sigmoid(f.p("w", 1, D)), (D, D))
    return f.relu(x @ table) @ f.transpose(f.broadcast_to(f.p("v", D), (2, D)))


def reshapes_that_copy(f, x):
    y = f.transpose(f.sigmoid(x * f.p("w", D)), (1, 0, 2))
    return f.reshape(y, (T, B * D)) @ f.p("v", B * D, 2)


def parts_of_parts(f, x):
    y = f.sigmoid(x * f.p("w", D))[1:, ::2, 1:-1]
    return f.relu(y[..., ::2] * f.p("v", 3)) + f.sigmoid(y[:1, None, 1, 3:])


def rotated(f, x):
    """Rotary embedding: the halves of the last axis swapped, one of them negated."""
    y = f.sigmoid(x @ f.p("w", D, D))
    half = D // 2
    return f.concatenate([-y[..., half:], y[..., :half]], -1) * f.p("angle", T, D) + y


def joined(f, x):
    pieces = [x[:, 1] @ f.p("w", D, 2), f.p("table", B, 3), x[:, 0, :1], x[:, 2] * f.p("v", D)]
    return f.sigmoid(f.concatenate(pieces, 1)) @ f.p("u", 14, 2)


def a_value_and_what_its_parts_make(f, x):
    """Loops over rows must not be fused here, as rows would be read before they are written."""
    y = f.sigmoid(x[:, 0] @ f.p("w", D, 4)) * f.p("v", 4)
    return f.sigmoid(y[:, 2:3]) + y


def some_of_a_value_twice(f, x):
    y = f.sigmoid(x @ f.p("w", D, D))
    return y[:, :2] * f.sigmoid(y[:, 1:]) + f.sum(y[:, 0] * y[:, 0])


def inputs_in_place(f, x):
    y = f.transpose(x, (2, 1, 0))
    return f.reshape(y, (D, T * B)) @ f.p("w", T * B, 2) + f.reshape(y[1:3, 0], (1, D))[:, :2]


CASES = (
    attention_of_slices, attention_of_selections, attention_and_norms, products_of_activations,
    products_that_broadcast, vectors, transposed_and_added, repeated, a_repeated_matrix,
    reshapes_that_copy, parts_of_parts, a_value_and_what_its_parts_make, rotated, joined,
    some_of_a_value_twice, inputs_in_place,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_programs_of_views_are_pytorchs(tmp_path, monkeypatch, case):
    monkeypatch.setattr("csrun.compiler.lair.loop.TILE_BYTES", 200)  # one row, or some
    check(torch, case, (B, T, D), tmp_path)


def test_heads_cost_nothing(tmp_path):
    """From one projection through attention's products no array is copied, forward or backward."""
    for case in (attention_of_slices, attention_of_selections):
        program = check(torch, case, (B, T, D), tmp_path)
        copies = [line for line in program.splitlines() if "copyto(" in line]
        of_heads = [line for line in copies if "clone" in line or "cat" in line]
        assert len(of_heads) == 0, of_heads
