"""Hyperparameters of the last step are reused only if nothing in param_groups can have changed."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from csrun.pytorch.optimizers.known_numbers import KnownNumbers  # noqa: E402

NUMBERS = (0.001, 0.0, 0.0)


def optimizer():
    return torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))])


def cache_of(groups):
    known = KnownNumbers()
    known.keep(groups, ("all",), NUMBERS)
    return known


def test_numbers_are_returned_while_nothing_changes():
    groups = optimizer().param_groups
    assert cache_of(groups).find(groups, ("all",)) == NUMBERS


def test_another_set_of_trained_parameters_invalidates_them():
    groups = optimizer().param_groups
    assert cache_of(groups).find(groups, ("some",)) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda group: group.update(lr=0.01),
        lambda group: group.update(betas=(0.8, 0.999)),
        lambda group: group.update(max_momentum=0.9),
        lambda group: group["params"].append(torch.nn.Parameter(torch.zeros(1))),
        lambda group: group["params"].insert(0, torch.nn.Parameter(group["params"].pop())),
    ],
)
def test_a_write_into_a_group_is_noticed(change):
    groups = optimizer().param_groups
    known = cache_of(groups)
    change(groups[0])
    assert known.find(groups, ("all",)) is None


def test_another_group_is_noticed():
    groups = optimizer().param_groups
    assert cache_of(groups).find([*groups, dict(groups[0])], ("all",)) is None


@pytest.mark.parametrize("options", [{"lr": torch.tensor(0.01)}, {"betas": [0.9, 0.999]}])
def test_an_option_that_may_change_inside_is_read_in_each_step(options):
    groups = optimizer().param_groups
    groups[0].update(options)
    assert cache_of(groups).find(groups, ("all",)) is None
