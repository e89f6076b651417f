"""Repeated blocks whose layers are folded on the report's page."""

import pytest

from csrun.compiler.report.repeated_blocks import Fold, block_of, folded


@pytest.mark.parametrize(
    ("layers", "block"),
    [
        (["h/3/attn/q"], "h/3"),
        (["h/3/ln", "h/3/attn/q"], "h/3"),
        (["encoder/12/experts/3/up"], "encoder/12"),
        (["3/up"], "3"),
        (["h/3/down", "h/4/ln"], None),
        (["h/3/down", "ln_f"], None),
        (["h/3"], None),
        (["dense_3"], None),
        (["h3/up"], None),
        ([], None),
    ],
)
def test_a_block_is_the_outermost_numbered_scope_of_all_its_layers(layers, block):
    assert block_of(layers) == block


def test_neighbours_of_a_block_are_one_fold():
    names = ["wte", "h/0/up", "h/0/down", "h/1/up", "h/1/down", "ln_f", "head"]
    assert folded(names, lambda name: (name,)) == (
        Fold(None, ("wte",)),
        Fold("h/0", ("h/0/up", "h/0/down")),
        Fold("h/1", ("h/1/up", "h/1/down")),
        Fold(None, ("ln_f", "head")),
    )


@pytest.mark.parametrize(
    "names",
    [
        ["a", "b", "c"],
        ["wte", "h/0/up", "h/0/down", "head"],  # one block says nothing that its layers do not
        ["h/0/up", "h/1/up", "h/2/up"],  # nor do blocks of one layer
        [],
    ],
)
def test_without_repeated_blocks_nothing_is_folded(names):
    assert folded(names, lambda name: (name,)) == (Fold(None, tuple(names)),)


def test_what_lies_across_blocks_stands_between_them():
    groups = [["h/0/a"], ["h/0/b"], ["h/0/c", "h/1/a"], ["h/1/b"], ["h/1/c"]]
    assert [fold.name for fold in folded(groups, list)] == ["h/0", None, "h/1"]
