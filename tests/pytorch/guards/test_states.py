"""State that forward reads and the loop changes: PyTorch's results, or a refusal with the line."""

import functools
import random
import types
from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402
from csrun.pytorch.guards import Guards  # noqa: E402
from csrun.pytorch.loop import program_limits  # noqa: E402
from csrun.pytorch.step.mutation_counters import ModuleSets  # noqa: E402

SETTINGS = {"tau": 1.0, "activation": torch.tanh}
TAU = 1.0
ACTIVATIONS = {1.0: torch.tanh, 0.5: torch.relu, 0.25: torch.sigmoid}


@dataclass(slots=True)
class Args:
    tau: float = 1.0


class Config:
    tau = 1.0
    args = Args()

    @property
    def inverse(self):
        return 1 / self.tau


class Scaled(nn.Module):
    """Layer scaled by `read(self)`."""

    def __init__(self, read):
        super().__init__()
        self.inner, self.read, self.tau, self.w = nn.Linear(6, 4), read, 1.0, [1.0, "a"]
        self.config = Config()

    def forward(self, x):
        return SETTINGS["activation"](self.inner(x)) * self.read(self)


def of_closure():
    value = 1.0

    def set_to(new):
        nonlocal value
        value = new

    return lambda module: value, lambda model, new: set_to(new)


def set_global(model, new):
    globals()["TAU"] = new


def in_dict(module):
    return SETTINGS["tau"]


READS = {
    "global": (lambda m: TAU, set_global),
    "dict": (in_dict, lambda m, new: SETTINGS.update(tau=new)),
    "function": (
        lambda m: 1.0,
        lambda m, new: SETTINGS.update(activation=ACTIVATIONS[new]),
    ),
    "list": (lambda m: m.w[0], lambda m, new: m.w.__setitem__(0, new)),
    "attribute": (lambda m: m.tau, lambda m, new: setattr(m, "tau", new)),
    "class": (lambda m: m.config.tau, lambda m, new: setattr(Config, "tau", new)),
    "object": (lambda m: m.config.tau, lambda m, new: setattr(m.config, "tau", new)),
    "property": (lambda m: m.config.inverse, lambda m, new: setattr(m.config, "tau", new)),
    "slots": (lambda m: m.config.args.tau, lambda m, new: setattr(m.config.args, "tau", new)),
    "partial": (functools.partial(in_dict), lambda m, new: SETTINGS.update(tau=new)),
    "closure": of_closure(),
}


@pytest.fixture(autouse=True)
def _as_before():
    yield
    SETTINGS.update(tau=1.0, activation=torch.tanh)
    set_global(None, 1.0)
    Config.tau = Config.args.tau = 1.0


@pytest.mark.parametrize("name", READS)
def test_each_kind_of_source_has_a_state_of_its_own(name):
    read, change = READS[name]
    model = Scaled(read)
    sets = ModuleSets(model)
    guards = Guards(model, sets.of_forward(model.forward), sets)
    with sets.counted():
        guards.forward(torch.ones(2, 6))
        change(model, 1.0)
        assert guards.state() == 0
        change(model, 0.5)
        assert guards.state() == 1
        change(model, 1.0)
        assert guards.state() == 0
        change(model, 0.25)
        assert guards.state() == 2


def test_what_forward_does_not_read_has_no_state():
    model = Scaled(READS["attribute"][0])
    sets = ModuleSets(model)
    guards = Guards(model, sets.of_forward(model.forward), sets)
    with sets.counted():
        guards.forward(torch.ones(2, 6))
        model.epoch, model.config.step, SETTINGS["other"] = 1, 2, 3
        assert guards.state() == 1  # a dict's items are read together
        del SETTINGS["other"]
        assert guards.state() == 0


def test_a_hook_is_seen_where_it_is_added_and_where_it_goes():
    model = Scaled(lambda m: 1.0)
    sets = ModuleSets(model)
    guards = Guards(model, sets.of_forward(model.forward), sets)
    with sets.counted():
        guards.forward(torch.ones(2, 6))
        handle = model.inner.register_forward_hook(lambda m, a, out: out * 2)
        assert guards.state() == 1
        handle.remove()
        assert guards.state() == 0


def trained(change, when):
    def loop(kit):
        losses = []
        for epoch in range(3):
            if when == "pass":
                change(kit.model[0], 0.5**epoch)
            for step, (x, y) in enumerate(kit.train):
                if when == "step":
                    change(kit.model[0], 1.0 if epoch * 6 + step < 8 else 0.5)
                kit.optimizer.zero_grad()
                loss = kit.criterion(kit.model(x), y)
                loss.backward()
                kit.optimizer.step()
                losses.append(loss.detach())
        change(kit.model[0], 1.0)
        return losses

    return loop


@pytest.mark.parametrize("name", ["dict", "object", "function"])
def test_a_value_that_changes_between_passes_is_pytorchs(tmp_path, name):
    read, change = READS[name]
    beside(trained(change, "pass"), tmp_path, Scaled(read))


def test_more_values_than_programs_replace_each_other(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(program_limits, "MOST_STATES", 2)
    read, change = READS["function"]
    beside(trained(change, "pass"), tmp_path, Scaled(read))
    assert "has had more than 2 programs, one for each value of what forward reads" in caplog.text


def test_a_value_may_change_after_the_batch_was_taken(tmp_path):
    read, change = READS["object"]
    beside(trained(change, "step"), tmp_path, Scaled(read))


def test_a_value_outside_of_the_graph_needs_no_new_program(tmp_path, caplog):
    """Steps with a new value are recorded, and equal the known graph."""

    def unused(module):
        return 1.0 if module.config.tau else 2.0

    change = READS["object"][1]
    with caplog.at_level("INFO", "csrun"):
        beside(trained(change, "pass"), tmp_path, Scaled(unused))
    assert caplog.text.count("Compiling") <= 1


def counts(module):
    module.tau += 1  # counted
    return 1.0 if module.tau < 9 else 2.0


def draws(module):
    return 1.0 if random.random() < 2 else 2.0  # drawn


def draws_by_numpy(module):
    return float(np.random.uniform() < 2)  # drawn by NumPy


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (counts, "forward changes model.tau"),
        (draws, "forward draws numbers from random"),
        (draws_by_numpy, "forward draws numbers from numpy.random"),
    ],
)
def test_a_forward_that_may_be_another_in_each_step_is_the_cause(read, said):
    model = Scaled(read)
    sets = ModuleSets(model)
    guards = Guards(model, sets.of_forward(model.forward), sets)
    with sets.counted():
        for _ in range(2):  # a counter differs in the second run
            guards.forward(torch.ones(2, 6))
    assert guards.take_cause().endswith(
        f"test_states.py:{read.__code__.co_firstlineno + 1}: {said}"
    )
    assert not guards.take_cause()


class Cached(nn.Module):
    """Layer that caches results and the batch size, as real models do."""

    def __init__(self):
        super().__init__()
        self.inner, self.size, self.scale, self.found = nn.Linear(6, 4), None, None, []

    def forward(self, x):
        if self.scale is None:
            self.scale = 2.0
        self.size = x.shape[0]
        self.found.clear()
        self.found.append(self.inner(x) * self.scale)
        return self.found[0] * (1.0 if self.size else 2.0)


def test_what_forward_keeps_for_itself_is_its_own(tmp_path):
    def loop(kit):
        losses = []
        for _ in range(3):
            losses += kit.train_once()
            kit.model.eval()
            with torch.no_grad():
                losses += [kit.criterion(kit.model(x), y).item() for x, y in kit.val]
            kit.model.train()
        return losses

    beside(loop, tmp_path, Cached())


def test_state_of_a_namespace_is_its_attributes():
    args = types.SimpleNamespace(tau=1.0)
    model = Scaled(lambda m: args.tau)
    sets = ModuleSets(model)
    guards = Guards(model, sets.of_forward(model.forward), sets)
    with sets.counted():
        guards.forward(torch.ones(2, 6))
        args.tau = 2.0
        assert guards.state() == 1


@pytest.mark.parametrize("first", [0, 4], ids=["from step 1", "from step 5"])
def test_what_changes_between_two_calls_in_a_step(tmp_path, first):
    """Recorded steps accept it; a later one is refused with the line."""

    def loop(kit):
        found = []
        for step, (x, y) in enumerate(kit.train):
            kit.optimizer.zero_grad()
            SETTINGS["tau"] = 1.0
            one = kit.model(x)
            SETTINGS["tau"] = 0.5 if step >= first else 1.0
            loss = kit.criterion(one + kit.model(x), y)
            loss.backward()
            kit.optimizer.step()
            found.append(loss.detach())
        return found

    if not first:
        beside(loop, tmp_path, Scaled(in_dict))
        return
    kit = Kit(Scaled(in_dict))
    said = r"test_states.py:\d+: SETTINGS.* has changed since the model was called"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        loop(kit)
