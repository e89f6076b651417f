"""Gradients that a loop edits by values of its steps: the loss, an output, a sum of them."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


def trained(kit, edit):
    """Two passes, in which `edit` gets the parameters, the loss and the output of each step."""
    losses = []
    for _ in range(2):
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            out = kit.model(x)
            loss = kit.criterion(out, y)
            loss.backward()
            edit(list(kit.model.parameters()), loss.detach(), out.detach())
            kit.optimizer.step()
            losses.append(loss.detach())
    return losses


def by_the_loss(parameters, loss, out):
    for parameter in parameters:
        parameter.grad.mul_(loss)


def before_the_gradient(parameters, loss, out):
    for parameter in parameters:
        parameter.grad = loss * parameter.grad


def by_an_output(parameters, loss, out):
    parameters[-1].grad.add_(out[0], alpha=0.1)


@pytest.mark.parametrize("edit", [by_the_loss, before_the_gradient], ids=lambda e: e.__name__)
def test_gradients_edited_by_a_value_of_the_step_are_pytorchs(tmp_path, edit):
    beside(lambda kit: trained(kit, edit), tmp_path)


def test_they_may_be_edited_so_from_a_later_step_on(tmp_path):
    """Which is another program, of the same forward and backward."""
    steps = []

    def edit(parameters, loss, out):
        steps.append(loss)
        if len(steps) % 12 > 6 or len(steps) % 12 == 0:
            by_the_loss(parameters, loss, out)

    beside(lambda kit: trained(kit, edit), tmp_path)


def by_the_last_loss():
    last = []

    def edit(parameters, loss, out):
        if len(last) > 4:
            parameters[0].grad.mul_(last[-1])
        last.append(loss)

    return edit


def by_what_is_computed(parameters, loss, out):
    parameters[0].grad.mul_(1 / loss)


@pytest.mark.parametrize("edit", [by_the_last_loss(), by_what_is_computed, by_an_output])
def test_by_other_values_they_are_not_edited(tmp_path, edit):
    kit = Kit()
    said = r"test_edits_by_values.py:\d+: gradients are edited with a value that the loop comp"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        trained(kit, edit)
