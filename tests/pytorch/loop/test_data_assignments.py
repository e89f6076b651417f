"""Assignments to a Parameter's `data` between steps."""

from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.eight_steps import Script, norms  # noqa: E402
from support.torch_loops import beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parameters_to_vector, vector_to_parameters  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


class Average:
    """Average of weights that scripts swap in and out through `p.data`."""

    def __init__(self, model):
        self.model = model
        self.shadow = {n: p.data.clone() for n, p in model.named_parameters()}
        self.backup = {}

    def update(self):
        for name, p in self.model.named_parameters():
            self.shadow[name] = 0.5 * self.shadow[name] + 0.5 * p.data

    def apply(self):
        for name, p in self.model.named_parameters():
            self.backup[name] = p.data
            p.data = self.shadow[name]

    def restore(self):
        for name, p in self.model.named_parameters():
            p.data = self.backup[name]


def test_an_average_may_be_swapped_in_and_out_by_data(tmp_path):
    def after(script, average, step, _):
        average.update()
        if step in (2, 5, 6):
            average.apply()
            averaged = norms(script)
            average.restore()
            return averaged, norms(script)
        return None

    ours, theirs = Script(), Script()
    with ours.session(tmp_path):
        found = ours.loop(partial(after, ours, Average(ours.model)))
    expected = theirs.loop(partial(after, theirs, Average(theirs.model)))
    for step in (2, 5, 6):
        for one, other in zip(found[step - 1], expected[step - 1], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_parameters_may_become_views_of_one_vector(tmp_path):
    """Writes into the vector are writes into the parameters, as in PyTorch."""
    vectors = {}

    def after(script, step, _):
        if step == 4:
            vector = vectors[script] = (
                parameters_to_vector(script.model.parameters()).detach() * 0.5
            )
            vector_to_parameters(vector, script.model.parameters())
        if step == 6:
            vectors[script].mul_(0.5)

    ours, theirs = Script(), Script()
    with ours.session(tmp_path):
        ours.loop(partial(after, ours))
    theirs.loop(partial(after, theirs))
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_data_set_within_a_step_is_refused(tmp_path):
    script = Script()
    weight = script.model[0].weight
    said = "is written between the loop's batch and optimizer"
    with pytest.raises(UsageError, match=said), script.session(tmp_path):
        for x, y in script.train:
            loss = script.criterion(script.model(x), y)
            weight.data = weight.data * 0.5
            loss.backward()
            script.optimizer.step()


def test_one_memory_of_two_parameters_is_refused(tmp_path):
    script = Script()
    script.model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)).double()
    script.optimizer = torch.optim.SGD(script.model.parameters(), 0.1)

    def after(step, _):
        if step == 5:
            script.model[1].weight.data = script.model[0].weight.data

    with pytest.raises(UsageError, match="the memory of another"), script.session(tmp_path):
        script.loop(after)


def test_parameters_may_be_replaced_before_the_first_step(tmp_path):
    ours, theirs = Script(), Script()
    with ours.session(tmp_path):
        for script in (ours, theirs):
            for p in script.model.parameters():
                p.data = p.data * 0.5
        found = ours.loop(lambda _, logits: logits.detach())
    expected = theirs.loop(lambda _, logits: logits.detach())
    np.testing.assert_allclose(torch.cat(found), torch.cat(expected), rtol=1e-9, atol=1e-11)


def test_moving_a_model_to_its_own_device_writes_nothing(tmp_path):
    def loop(kit):
        losses = []
        for step, (x, y) in enumerate(kit.train):
            kit.model.to("cpu")  # during a step, as wrappers do at an end of a pass or in forward
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            kit.model.cpu().double()  # which also moves the gradients
            kit.optimizer.step()
            if step % 2:
                kit.model.to("cpu", torch.float64)
            losses.append(loss.detach())
        return losses

    beside(loop, tmp_path)


def test_assigning_a_flipped_copy_to_data_is_a_write(tmp_path):
    def loop(kit):
        losses = []
        for x, y in kit.train:
            losses.append(kit.update(kit.criterion(kit.model(x), y)))
            weight = kit.model[0].weight
            weight.data = weight.data.flip(0)
        return losses

    beside(loop, tmp_path)


class Follows(nn.Module):
    """Layer whose weight forward assigns, and one whose weight it averages, as MoCo does."""

    def __init__(self):
        super().__init__()
        self.first, self.copy, self.mean = (nn.Linear(6, 4) for _ in range(3))
        for module in (self.copy, self.mean):
            module.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            self.copy.weight.data = self.first.weight.data * 0.5
            self.mean.weight.data.mul_(0.9).add_(self.first.weight.data, alpha=0.1)
        return self.first(x) - self.copy(x) * self.mean(x)


def test_forward_may_assign_data_before_its_use(tmp_path):
    beside(lambda kit: kit.train_once() + kit.train_once(), tmp_path, Follows())
