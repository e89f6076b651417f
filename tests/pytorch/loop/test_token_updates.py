"""Steps with several optimizers on tokens: forward's Python runs in the first steps only."""

from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from pytorch.loop.test_updating_loop import Pair, beside  # noqa: E402
from torch import nn, optim  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.pytorch.loop.updating_loop import UpdatingLoop  # noqa: E402

PASSES = 4  # of 4 steps
DEVIATES = 9  # a step on tokens


@pytest.fixture
def on_tokens(monkeypatch):
    """Number of steps that ran on tokens."""
    found, end = [], UpdatingLoop._end_on_tokens

    def noted(loop, step):
        found.append(step.outputs.number)
        end(loop, step)

    monkeypatch.setattr(UpdatingLoop, "_end_on_tokens", noted)
    return found


def loop_of(step, passes=PASSES):
    """Loop of steps. step: returns the numbers of one."""

    def loop(pair):
        found = []
        kept.clear()
        for _ in range(passes):
            for (x,) in pair.train:
                found += step(pair, x)
        return found + [x.detach() for x in kept]

    return loop


kept = []  # values that are read at the end


def one_after_the_other(pair, x):
    """Each optimizer clears both models' gradients before its loss."""
    found = []
    for turn in range(2):
        for optimizer in pair.optimizers:
            optimizer.zero_grad()
        loss = pair.criterion(pair.d(pair.g(pair.noise())), pair.ones * turn)
        if not turn:
            loss = loss + pair.criterion(pair.d(x), pair.ones)
        loss.backward()
        pair.optimizers[turn].step()
        found.append(loss.detach())
    return found


def generator_first(pair, x):
    """Generator first: the discriminator has old gradients, and a fake has two losses."""
    d, g = pair.optimizers
    g.zero_grad()
    fake = pair.g(pair.noise())
    of_g = pair.criterion(pair.d(fake), pair.ones)
    of_g.backward()
    g.step()
    d.zero_grad()
    real = pair.criterion(pair.d(x), pair.ones)
    of_fake = pair.criterion(pair.d(fake.detach()), 0 * pair.ones)
    ((real + of_fake) / 2).backward()
    d.step()
    kept.append(of_fake)
    return [of_g.item(), real.detach()]


def several_backward_passes(pair, x):
    """Gradients of one optimizer accumulate while those of the other are pending."""
    d, g = pair.optimizers
    pair.d.zero_grad()
    real = pair.criterion(pair.d(x), pair.ones)
    real.backward()
    fake = pair.g(pair.noise())
    of_fake = pair.criterion(pair.d(fake.detach()), 0 * pair.ones)
    of_fake.backward()
    pair.g.zero_grad()
    feature = (pair.g(pair.noise()) - x).square().mean()
    feature.backward()
    d.step()
    of_g = pair.criterion(pair.d(fake), pair.ones)
    of_g.backward()
    g.step()
    return [(real + of_fake).detach(), of_g.detach(), feature.detach()]


STEPS = [one_after_the_other, generator_first, several_backward_passes]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_steps_on_tokens_have_pytorchs_numbers(step, on_tokens, tmp_path):
    beside(loop_of(step), tmp_path)
    assert on_tokens[-1] == 4 * PASSES - 1, "the last step"
    assert len(on_tokens) >= 4 * PASSES - 6, "all but the first ones"


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_steps_on_tokens_have_the_bits_of_recorded_ones(step, tmp_path, monkeypatch, on_tokens):
    tokens = beside(loop_of(step), tmp_path / "tokens").state
    assert on_tokens
    monkeypatch.setattr(cbtorch, "initialize", partial(cbtorch.initialize, fast=False))
    on_tokens.clear()
    recorded = beside(loop_of(step), tmp_path / "recorded").state
    assert not on_tokens
    assert all(map(torch.equal, tokens, recorded))


class WithoutNoise(Pair):
    """Network without a bias before a norm, whose gradient is noise that Adam amplifies."""

    def __init__(self, make):
        super().__init__(make)
        generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 5), nn.Tanh())
        self.g = generator.double()
        self.models, self.optimizers[1] = [self.d, self.g], make(self.g.parameters())


OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "AdamW": lambda p: optim.AdamW(p, 0.01, amsgrad=True),
    "RMSprop": lambda p: optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "NAdam": lambda p: optim.NAdam(p, 0.01),
    "foreach": lambda p: optim.Adam(p, 0.01, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_compute_their_numbers_in_each_step(name, on_tokens, tmp_path):
    """Includes a learning rate that changes in each step."""

    def loop(pair):
        found = []
        schedules = [optim.lr_scheduler.ExponentialLR(each, 0.97) for each in pair.optimizers]
        for _ in range(PASSES):
            for (x,) in pair.train:
                found += one_after_the_other(pair, x)
                for schedule in schedules:
                    schedule.step()
        return found

    beside(loop, tmp_path, kit=WithoutNoise, make=OPTIMIZERS[name])
    assert len(on_tokens) >= 4 * PASSES - 7


def _reads_between(pair, loss):
    return [loss.item()]


def _reads_a_gradient(pair, loss):
    return [pair.d[0].weight.grad.norm()]


def _clips(pair, loss):
    return [nn.utils.clip_grad_norm_(pair.d.parameters(), 0.01)]


def _reads_a_weight(pair, loss):
    return [pair.d[0].weight.detach().norm().item()]


def _writes_weights(pair, loss):
    with torch.no_grad():
        for p in pair.d.parameters():
            p.clamp_(-0.1, 0.1)
    return []


def _predicts(pair, loss):
    with torch.no_grad():
        return [pair.d(torch.ones(2, 5, dtype=torch.float64)).sum()]


def _calls_again(pair, loss):
    return [pair.d(pair.g(pair.noise())).mean().detach()]


def _updates_again(pair, loss):
    pair.optimizers[0].step()
    return []


def _changes_a_mode(pair, loss):
    pair.g.eval()
    return []


DEVIATIONS = [
    _reads_between, _reads_a_gradient, _clips, _reads_a_weight, _writes_weights, _predicts,
    _calls_again, _updates_again, _changes_a_mode,
]  # fmt: skip
PLACES = ["before the first update", "after it", "at the end"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda each: each.__name__)
def test_a_step_that_deviates_is_recorded(deviation, place, on_tokens, tmp_path):
    count = [0]

    def step(pair, x):
        found, number = [], count[0]
        count[0] += 1

        def at(here, loss):
            if number % (4 * PASSES) == DEVIATES and PLACES[here] == place:
                found.extend(deviation(pair, loss))

        pair.g.train()
        d, g = pair.optimizers
        d.zero_grad()
        fake = pair.g(pair.noise())
        of_d = pair.criterion(pair.d(x), pair.ones) - pair.d(fake.detach()).mean()
        of_d.backward()
        at(0, of_d)
        d.step()
        at(1, of_d)
        g.zero_grad()
        of_g = pair.criterion(pair.d(fake), pair.ones)
        of_g.backward()
        g.step()
        at(2, of_g)
        return [*found, of_d.detach(), of_g.detach()]

    beside(loop_of(step), tmp_path)
    assert {DEVIATES - 1}.issubset(on_tokens)


def test_a_step_that_is_left_early_is_recorded(on_tokens, tmp_path):
    def loop(pair):
        found = []
        for number in range(PASSES):
            for position, (x,) in enumerate(pair.train):
                d, g = pair.optimizers
                d.zero_grad()
                loss = pair.criterion(pair.d(x), pair.ones)
                loss.backward()
                d.step()
                found.append(loss.detach())
                if number == 2 and position == 1:
                    continue
                g.zero_grad()
                pair.d(pair.g(pair.noise())).mean().backward()
                g.step()
        return found

    beside(loop, tmp_path)
    assert 8 in on_tokens


def test_another_option_and_a_new_group_of_an_optimizer(on_tokens, tmp_path):
    def loop(pair):
        found = []
        for number in range(PASSES):
            for (x,) in pair.train:
                if number == 2:
                    pair.optimizers[0].param_groups[0]["weight_decay"] = 0.1
                found += one_after_the_other(pair, x)
        return found

    beside(loop, tmp_path)
    assert 7 in on_tokens


def test_weights_saved_between_two_passes_are_those_of_the_last_step(on_tokens, tmp_path):
    def loop(pair):
        found = []
        for _ in range(PASSES):
            for (x,) in pair.train:
                found += one_after_the_other(pair, x)
            found += [x.clone().double().sum() for x in pair.d.state_dict().values()]
        return found

    beside(loop, tmp_path)
    assert on_tokens[-1] == 4 * PASSES - 1


def test_a_run_of_steps_on_tokens_goes_on_where_it_ended(on_tokens, tmp_path):
    def step(pair, x):
        return [loss.item() for loss in one_after_the_other(pair, x)]

    beside(loop_of(step, 3), tmp_path)
    assert on_tokens[-1] == 11
    on_tokens.clear()
    beside(loop_of(step, 5), tmp_path)
    assert on_tokens[-1] == 19


def test_hooks_and_attributes_that_the_loop_sets_have_the_step_recorded(on_tokens, tmp_path):
    class Scaled(nn.Module):
        scale = 1.0

        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x) * self.scale

    class WithScale(Pair):
        def __init__(self):
            super().__init__()
            self.d = Scaled(self.d)
            self.models[0] = self.d

    def loop(pair):
        found = []
        for number in range(PASSES):
            pair.d.scale = 1.0 + (number > 1)
            for position, (x,) in enumerate(pair.train):
                if (number, position) == (3, 1):
                    pair.d.inner[2].weight.register_hook(lambda gradient: gradient * 0.5)
                found += one_after_the_other(pair, x)
        return found

    beside(loop, tmp_path, kit=WithScale)
    assert on_tokens
    assert on_tokens[-1] < 13, "a hook is registered"
