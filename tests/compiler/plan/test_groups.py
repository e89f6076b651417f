"""Grouping of layers for transfer: handmade lists of layers in order of use."""

import pytest

from csrun.compiler.plan.groups import group_layers

MB = 1 << 20


def uses(layers):
    return [frozenset(names.split("+")) if names else frozenset() for names in layers]


def grouped(sizes, forward=None, backward=None, limit=MB):
    """Groups as text; the layers are a chain by default."""
    forward = [*sizes] if forward is None else forward
    backward = [*reversed(forward)] if backward is None else backward
    groups = group_layers(sizes, uses(forward), uses(backward), limit)
    assert sorted(layer for group in groups for layer in group) == sorted(sizes)
    return [" ".join(group) for group in groups]


def test_small_layers_in_a_row_are_a_group_up_to_its_size():
    sizes = {"a": MB // 2, "b": MB // 4, "c": MB // 4, "d": MB // 4, "e": 2 * MB, "f": MB}
    assert grouped(sizes) == ["a b c", "d e", "f"]
    assert grouped(sizes, limit=1) == grouped(sizes, limit=0) == [*"abcdef"]
    assert grouped({"a": MB // 2, "b": 2 * MB, "c": MB // 2}) == ["a", "b", "c"]


def test_a_norm_joins_the_next_large_layer():
    """A group of its own would compute for too short a time to hide the next transfer."""
    block = {"norm": 6144, "qkv": 7 * MB, "o": 2 * MB, "norm_1": 6144, "up": 9 * MB, "down": 9 * MB}
    sizes = {f"h/{i}/{name}": n for i in range(2) for name, n in block.items()} | {"norm": 6144}
    one = ["norm qkv", "o", "norm_1 up", "down"]
    expected = [
        " ".join(f"h/{i}/{name}" for name in group.split()) for i in range(2) for group in one
    ]
    expected[-1] += " norm"  # nothing follows it
    assert grouped(sizes) == expected
    expected[-1] = "h/1/down"
    assert grouped(sizes | {"head": 40 * MB}) == [*expected, "norm head"]


def test_a_block_that_fits_a_group_is_not_torn():
    layers = {"attn/norm": 100, "attn/qkv": 300, "mlp": 200}
    sizes = {f"h/{i}/{name}": n for i in range(5) for name, n in layers.items()}
    blocks = [" ".join(f"h/{i}/{name}" for name in layers) for i in range(5)]
    assert grouped(sizes, limit=600) == blocks
    assert grouped(sizes, limit=1300) == [" ".join(blocks[:2]), " ".join(blocks[2:4]), blocks[4]]
    assert grouped(sizes, limit=500) == [  # and the parts of a larger one are not torn, either
        name for i in range(5) for name in (f"h/{i}/attn/norm h/{i}/attn/qkv", f"h/{i}/mlp")
    ]


def test_no_layer_joins_one_that_is_used_twice():
    """Tied head: the groups of the untied model, without the head's."""
    layers = ["wte", "wpe", "h/0", "h/1", "norm"]
    sizes = {"wte": 600, "wpe": 50, "h/0": 900, "h/1": 900, "norm": 10}
    tied = grouped(sizes, [*layers, "wte"], limit=1000)
    assert tied == ["wte", "wpe h/0", "h/1 norm"]
    assert grouped(sizes, [*layers, "wte"], backward=[], limit=1000) == tied  # in evaluation, too
    untied = grouped({**sizes, "head": 600}, [*layers, "head"], limit=1000)
    assert untied == ["wte wpe", "h/0", "h/1", "norm head"]


def test_a_layer_that_is_used_early_and_read_late_costs_nothing_but_its_own_group():
    """The gate's gradients are complete before or after the chain's, whose groups do not change."""
    sizes = dict.fromkeys(("gate", "a", "b", "c"), MB)
    assert grouped(sizes, backward=["gate", "c", "b", "a"]) == ["gate", "a", "b", "c"]
    small = dict.fromkeys(sizes, 100)
    assert grouped(small, backward=["gate", "c", "b", "a"]) == ["gate", "a b c"]
    assert grouped(small) == ["gate a b c"]


def test_what_one_kernel_uses_is_one_group_and_nothing_else_is():
    sizes = dict.fromkeys("abcd", 2 * MB)
    assert grouped(sizes, ["a", "b+d", "c"]) == ["a", "b d", "c"]


def test_layers_come_in_the_order_of_their_use():
    sizes = {"head": 2 * MB, "body": 2 * MB}
    assert grouped(sizes, ["body", "head"]) == ["body", "head"]


def stored_groups(stored, sizes, forward, backward=None):
    backward = [*reversed(forward)] if backward is None else backward
    found = group_layers(sizes, uses(forward), uses(backward), MB, stored=stored.split())
    return [" ".join(group) for group in found]


def test_layers_of_anothers_store_come_in_its_order_and_a_group_is_a_piece_of_it():
    small = dict.fromkeys("abcd", 100)
    assert stored_groups("a b c d", small, ["a", "b", "c", "d"]) == ["a b c d"]
    assert stored_groups("a b c d", small, ["a", "c", "b", "d"]) == ["a", "b", "c", "d"]
    assert stored_groups("c d a b", small, ["a", "b", "c", "d"]) == ["c d", "a b"]
    without_b = dict.fromkeys("acd", 100)
    assert stored_groups("a b c d", without_b, ["a", "c", "d"]) == ["a", "c d"]


def test_layers_that_the_store_lacks_come_after_its_own_in_the_order_of_their_use():
    small = dict.fromkeys("abcd", 100)
    assert stored_groups("b d", small, ["c", "b", "a", "d"]) == ["b", "d", "c", "a"]
    assert stored_groups("b d", small, ["b", "d", "a", "c"]) == ["b d a c"]


def test_what_one_kernel_uses_is_one_group_with_all_that_the_store_has_between():
    large = dict.fromkeys("abcde", 2 * MB)
    assert stored_groups("a b c d e", large, ["a", "b+d", "c", "e"]) == ["a", "b c d", "e"]
    with_new = dict.fromkeys("abcx", 2 * MB)
    assert stored_groups("a b c", with_new, ["a+c+x", "b"]) == ["a b c x"]
    assert stored_groups("a b c", with_new, ["a+x", "b", "c"]) == ["a x", "b", "c"]


def test_an_unused_layer_comes_after_the_one_that_is_declared_before_it():
    sizes = dict.fromkeys("abcd", 2 * MB)
    assert grouped(sizes, ["a", "b", "c", "d"]) == ["a", "b", "c", "d"]
    assert grouped(sizes, ["a", "b", "d"]) == ["a", "b", "c", "d"]
    assert grouped(sizes, ["b", "d"]) == ["a", "b", "c", "d"]
    assert grouped(dict.fromkeys("abc", 100), ["a", "c"]) == ["a b", "c"]


def test_a_kernel_without_weights_parts_nothing():
    assert grouped({"a": 1, "b": 1}, ["", "a", "", "b", ""]) == ["a b"]


def test_a_layer_that_is_not_trained_stands_with_its_neighbours():
    sizes = dict.fromkeys("abc", 100)
    assert grouped(sizes, backward=["c", "a"]) == ["a b c"]


@pytest.mark.parametrize("layers", [1, 300])
def test_every_layer_is_in_one_group_however_many_there_are(layers):
    sizes = {f"h/{i}/dense": 5000 for i in range(layers)}
    groups = grouped(sizes, limit=20_000)
    assert len(groups) == -(-layers // 4)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"a": 400, "b": 100, "c": 100, "d": 100}, ["a", "b c d"]),
        ({"a": 100, "b": 100, "c": 100}, ["a", "b c"]),
        ({"a": 100, "b": 300, "c": 200}, ["a b", "c"]),
        ({"a": 10, "b": 800, "c": 90}, ["a b c"]),  # one would be done before the other comes
        ({"a": 800}, ["a"]),
    ],
)
def test_one_group_is_two_where_updates_go_beside_gradients(sizes, expected):
    forward, backward = uses(sizes), uses(reversed(sizes))
    assert group_layers(sizes, forward, backward, MB) == [tuple(sizes)]
    halves = group_layers(sizes, forward, backward, MB, concurrent_updates=True)
    assert [" ".join(group) for group in halves] == expected
    assert group_layers(sizes, forward, [], MB, concurrent_updates=True) == [tuple(sizes)]


def test_two_groups_stay_two_where_updates_go_beside_gradients():
    sizes = {"a": MB, "b": MB // 2, "c": MB // 2}
    forward, backward = uses(sizes), uses(reversed(sizes))
    groups = group_layers(sizes, forward, backward, MB, concurrent_updates=True)
    assert groups == [("a",), ("b", "c")]
