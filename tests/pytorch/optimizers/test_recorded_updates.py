"""Optimizers without a rule: PyTorch's own code is recorded with the step."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.optimizers_without_rule import (  # noqa: E402
    CASES,
    Decaying,
    FromWeights,
    OfSigns,
)
from support.torch_loops import Kit, beside  # noqa: E402
from torch import optim  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402
from csrun.pytorch.optimizers import initial_optimizer_state  # noqa: E402
from csrun.pytorch.optimizers.initial_optimizer_state import create_state  # noqa: E402

OF_LISTS = ("ASGD of lists", "Rprop of lists")  # as OfLists and Adam of lists are


def others_are_quick(names, slow):
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in slow)) for name in names]


@pytest.mark.parametrize("name", others_are_quick(CASES, OF_LISTS))
def test_an_optimizer_without_a_rule_has_pytorchs_numbers(name, tmp_path):
    beside(lambda kit: kit.train_once(), tmp_path, optimizer=CASES[name])


def test_a_state_begins_with_the_weights_and_random_numbers_of_the_first_step(tmp_path):
    def loop(kit):
        weights = kit.model.state_dict()
        kit.model.load_state_dict({name: 0.5 * x for name, x in weights.items()})
        torch.manual_seed(5)
        return kit.train_once()

    beside(loop, tmp_path, optimizer=FromWeights)


class KilledError(Exception):
    """Raised to end a run that is started again."""


@pytest.mark.parametrize("name", others_are_quick(("Wrapping", "Moving"), ("Moving",)))
def test_a_killed_run_resumes_with_state_of_later_steps(name, tmp_path):
    def kill(step):
        if step == 4:
            raise KilledError

    def run(edit=lambda step: None):
        ours = Kit(optimizer=CASES[name])
        with ours.session(tmp_path, save_checkpoints_steps=1):
            losses = ours.train_once(edit)
        return torch.tensor([loss.item() for loss in losses], dtype=torch.float64)

    with pytest.raises(KilledError):
        run(kill)
    theirs = Kit(optimizer=CASES[name])
    torch.testing.assert_close(run(), torch.stack(theirs.train_once()), rtol=1e-6, atol=0)


def test_a_state_that_checkpoints_do_not_contain_is_warned_of(tmp_path, caplog):
    beside(lambda kit: kit.train_once(), tmp_path, optimizer=OfSigns)
    assert caplog.text.count("do not contain 'is_up' of the optimizer, a bool tensor") == 1


IN_LISTS = {
    "Adamax": lambda p: optim.Adamax(p, 0.01, weight_decay=0.1),
    "AdamW": lambda p: optim.AdamW(p, 0.01, amsgrad=True),
    "NAdam": lambda p: optim.NAdam(p, 0.01),
    "Adam of lists": lambda p: optim.Adam(p, 0.01, foreach=True),
    "SGD": lambda p: optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "SGD with dampening": lambda p: optim.SGD(p, 0.05, momentum=0.9, dampening=0.5),
}


class InLists(Kit):
    """Kit whose Session has lists, so that updates are recorded."""

    def session(self, folder, **options):
        super().session(folder, **options)
        return cbtorch.Session([self.model], [self.optimizer], mode="train")


@pytest.mark.parametrize("name", others_are_quick(IN_LISTS, ("Adamax", "NAdam")))
def test_optimizers_with_a_rule_may_be_recorded_too(name, tmp_path):
    beside(lambda kit: kit.train_once(), tmp_path, kit=InLists, optimizer=IN_LISTS[name])


def test_a_closure_of_an_optimizer_in_lists_is_called_once(tmp_path):
    calls = []

    def loop(kit):
        losses = []
        for x, y in kit.train:

            def closure(x=x, y=y):
                calls.append(kit)
                kit.optimizer.zero_grad()
                loss = kit.criterion(kit.model(x), y)
                loss.backward()
                return loss

            losses.append(kit.optimizer.step(closure=closure).detach())
        return losses

    beside(loop, tmp_path, kit=InLists, optimizer=IN_LISTS["AdamW"])
    assert len(calls) == 2 * 6


def test_lbfgs_computes_on_the_host_what_pytorch_does(tmp_path, caplog):
    def closures(kit):
        torch.manual_seed(7)
        x, y = torch.randn(12, 6, dtype=torch.float64), torch.randint(4, (12,))
        losses = []

        def closure():
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            losses.append(loss.item())
            return loss

        return [*(kit.optimizer.step(closure).item() for _ in range(3)), *losses]

    caplog.set_level("INFO", "csrun")
    beside(closures, tmp_path, optimizer=lambda p: optim.LBFGS(p, 0.5, max_iter=4), rel=1e-7)
    assert "LBFGS computes its updates on the host" in caplog.text


def test_the_state_before_the_first_step_is_what_pytorch_creates():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = Decaying([parameter], 0.1)
    create_state(optimizer, [parameter])
    state = optimizer.state[parameter]
    assert state["count"] == 0
    assert not state["mean"].any()
    assert torch.equal(parameter, torch.ones(3))
    assert parameter.grad is None


def test_a_filled_tensor_begins_with_its_first_value():
    class Filled(optim.Optimizer):
        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                state = self.state[p]
                if not state:
                    state["size"] = torch.empty_like(p).fill_(1.0)
                p.sub_(p.grad / state["size"].add_(p.grad))

    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = Filled([parameter], {})
    create_state(optimizer, [parameter])
    assert torch.equal(optimizer.state[parameter]["size"], torch.ones(3))


class Sharpness(optim.Optimizer):
    """SAM: perturb the weights, then step another optimizer with the gradients there.

    Can only run after `train()`.
    """

    def __init__(self, params, base):
        super().__init__(params, {})
        self.base, self.is_training = base(self.param_groups), False
        self.param_groups = self.base.param_groups

    def train(self):
        self.is_training = True

    @torch.no_grad()
    def first_step(self):
        for p in self.param_groups[0]["params"]:
            self.state[p]["before"] = p.data.clone()
            p.add_(0.1 * p.grad / p.grad.norm())

    @torch.no_grad()
    def second_step(self):
        assert self.is_training, "it is not training"
        for p in self.param_groups[0]["params"]:
            p.data = self.state[p]["before"]
        self.base.step()

    @torch.no_grad()
    def step(self, closure=None):
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()


@pytest.mark.parametrize("has_closure", [False, True], ids=["two steps", "closure"])
def test_an_optimizer_may_wrap_another_one(has_closure, tmp_path):
    def loop(kit):
        losses = []
        kit.optimizer.train()
        for x, y in kit.train:

            def closure(x=x, y=y):
                kit.optimizer.zero_grad()
                loss = kit.criterion(kit.model(x), y)
                loss.backward()
                return loss

            losses.append(closure().detach())
            if has_closure:
                kit.optimizer.step(closure)
            else:
                kit.optimizer.first_step()
                closure()
                kit.optimizer.second_step()
        return losses

    beside(loop, tmp_path, kit=InLists, optimizer=lambda p: Sharpness(p, optim.AdamW))


def test_a_bug_of_csrun_in_the_first_step_keeps_its_traceback(tmp_path, monkeypatch):
    def buggy(*arguments):
        raise KeyError("bug")

    monkeypatch.setattr(initial_optimizer_state, "written_by", buggy)
    with pytest.raises(KeyError, match="bug"):
        InLists(optimizer=CASES["Rprop"]).session(tmp_path)


@pytest.mark.parametrize("name", ["Adafactor", "Adam of lists"])
def test_numbers_that_change_in_each_step_are_inputs(name, tmp_path, caplog):
    """Decay factors and bias corrections: the first steps show which numbers change."""
    caplog.set_level("INFO", "csrun")
    kit = InLists(optimizer={**CASES, **IN_LISTS}[name])
    with kit.session(tmp_path):
        for _ in range(2):
            kit.train_once()
    assert caplog.text.count("Compiled in") <= 5, "of 12 steps"
    assert ("a value is read before a later update (" in caplog.text) == (name == "Adafactor")


@pytest.mark.parametrize("name", ["Adafactor", "Decaying"])
def test_state_is_loaded_before_the_first_step_of_the_block(tmp_path, name):
    """The optimizer's own state, as in Accelerate's prepare(), and that of another training."""
    other = Kit(optimizer=CASES[name])
    other.train_once()

    def loop(kit):
        kit.optimizer.load_state_dict(kit.optimizer.state_dict())
        kit.model.load_state_dict(other.model.state_dict())
        kit.optimizer.load_state_dict(copy.deepcopy(other.optimizer.state_dict()))
        return kit.train_once()

    beside(loop, tmp_path, optimizer=CASES[name])


def test_state_is_not_loaded_after_the_first_step(tmp_path):
    kit = Kit(optimizer=CASES["Adafactor"])
    said = "load_state_dict of the optimizer must be called before the first step"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()
        kit.optimizer.load_state_dict(kit.optimizer.state_dict())


def test_weights_are_masked_by_sums_of_gradients(tmp_path):
    """As in AdaLoRA; the sums are first read when weights are masked."""

    def loop(kit):
        weight, losses, score = kit.model[0].weight, [], 0.0
        for step, (x, y) in enumerate(batch for _ in range(2) for batch in kit.train):
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            kit.optimizer.step()
            score = 0.5 * score + (weight * weight.grad).abs().detach().sum(1, keepdim=True)
            with torch.no_grad():
                if step in (4, 7):
                    weight.masked_fill_(score <= score.median().item(), 0.0)
            kit.optimizer.zero_grad()
            losses.append(loss.detach())
        return losses

    beside(loop, tmp_path, optimizer=CASES["Rprop"])
