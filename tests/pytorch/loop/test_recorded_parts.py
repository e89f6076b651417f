"""Loops whose steps differ: each step is recorded, and its program is found by its graph."""

import gc
import json
import random
import re

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402
from csrun.pytorch.loop import program_limits  # noqa: E402


class LayerDrop(nn.Module):
    """Network that skips its first layer at random, by Python's generator."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.last(x if random.random() < 0.4 else self.first(x).tanh())


class MiddleDrop(nn.Module):
    """Network that skips its middle layer at random, and has an unused one."""

    def __init__(self):
        super().__init__()
        self.first, self.unused, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.middle = nn.Linear(6, 6)

    def forward(self, x):
        x = self.first(x)
        return self.last(x if random.random() < 0.4 else self.middle(x).tanh())


class Disordered(nn.Module):
    """Network with layers declared in another order than called, each skipped at random."""

    def __init__(self):
        super().__init__()
        self.last, self.second = nn.Linear(6, 4), nn.Linear(6, 6)
        self.first, self.third = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        x = self.first(x)
        for layer in (self.second, self.third):
            x = layer(x).tanh() if random.random() < 0.5 else x
        return self.last(x)


class Shuffled(nn.Module):
    """Network that calls two of its layers in random order."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.last = nn.Linear(6, 4)

    def forward(self, x):
        for number in random.sample(range(4), 2):
            x = self.layers[number](x).tanh()
        return self.last(x)


class Counter(LayerDrop):
    """Network that scales its output by the number of calls."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return self.last(self.first(x)) * (1 + self.calls % 3)


class OfBatch(LayerDrop):
    """Network with one more layer for batches with a positive sum."""

    def forward(self, x):
        return self.last(self.first(x).tanh() if x.sum() > 0 else x)


class OfWeights(LayerDrop):
    """Network that halves large activations."""

    def forward(self, x):
        h = self.first(x)
        if h.abs().max().item() > 2:
            h = h * 0.5
        return self.last(h)


class Quantized(LayerDrop):
    """Vector quantization with moving codes, enabled by a boolean buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(5, 6))
        self.register_buffer("is_ready", torch.tensor(False))
        self.register_buffer("zero", torch.tensor(0.0))

    def forward(self, x):
        z = self.first(x)
        near = (z[:, None] - self.codes).square().sum(2).argmin(1)
        code, hits = self.codes[near], nn.functional.one_hot(near, 5).to(z.dtype)
        with torch.no_grad():
            self.codes.lerp_(hits.t() @ z / hits.sum(0).clamp(min=1)[:, None], 0.1)
        if not self.is_ready:
            return self.last(z)
        apart = self.zero.requires_grad_() + (z - code).square().mean()  # a leaf to autograd
        return self.last(z + (code - z).detach()) + apart


def one_pass(kit):
    """Losses of a pass; Quantized is enabled after three steps."""
    random.seed(5)
    losses = []
    for step, (x, y) in enumerate(kit.train):
        losses.append(kit.update(kit.criterion(kit.model(x), y)))
        if step == 2 and isinstance(layer := kit.model[0], Quantized):
            layer.is_ready.fill_(True)
    return losses


DROPS = [LayerDrop, MiddleDrop, Disordered, Shuffled]


@pytest.mark.parametrize("layer", [*DROPS, Counter, OfBatch, OfWeights, Quantized])
@pytest.mark.parametrize("fast", [True, False])
def test_forward_may_compute_something_else_in_each_step(tmp_path, layer, fast):
    torch.manual_seed(1)
    beside(one_pass, tmp_path, layer(), settings={"fast": fast})


class ListKit(Kit):
    """Kit whose updates are recorded with the step."""

    def session(self, folder, **options):
        super().session(folder, **options)
        return cbtorch.Session([self.model], [self.optimizer], mode="train")


def adam(parameters):
    return torch.optim.Adam(parameters, 0.01)


@pytest.mark.parametrize("kit", [Kit, ListKit])
def test_layers_that_are_skipped_count_no_steps_of_adam(tmp_path, kit):
    torch.manual_seed(1)
    beside(one_pass, tmp_path, Disordered(), kit=kit, optimizer=adam)


class Branches(nn.Module):
    """Network with a branch that the loop selects between passes."""

    branch = 0

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(6, 4) for _ in range(2))

    def forward(self, x):
        return self.branches[self.branch](x)


def branch_by_branch(kit):
    losses = []
    for number in (0, 1, 0, 1):
        kit.model[0].branch = number
        losses += kit.train_once()
    return losses


def test_other_parameters_in_each_pass_need_recorded_steps(tmp_path):
    beside(branch_by_branch, tmp_path / "slow", Branches(), settings={"fast": False})
    kit = Kit(Branches())
    said = r"0.branches.1.bias is trained in this step, not 0.branches.0.bias, and in earlier ones"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path / "fast"):
        branch_by_branch(kit)


class FrozenBranch(Branches):
    """Branches with a frozen one, after a common layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.branches[1].requires_grad_(False)

    def forward(self, x):
        return super().forward(self.first(x))


def test_a_step_with_other_weights_that_trains_less_is_refused(tmp_path):
    kit = Kit(FrozenBranch())
    said = r"0.branches.0.bias is not trained in this step, which needs state that others lack"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        branch_by_branch(kit)


def test_a_recorded_loop_has_the_bits_of_a_fast_one(tmp_path):
    found = []
    for fast in (True, False):
        kit = Kit()
        with kit.session(tmp_path / str(fast), fast=fast):
            losses = [float(x) for x in kit.train_once()]
        found.append((losses, [p.tolist() for p in kit.model.parameters()]))
    assert found[0] == found[1]


def test_a_resumed_loop_goes_on_as_if_it_had_never_ended(tmp_path):
    def run(folder, passes):
        torch.manual_seed(1)
        kit = Kit(LayerDrop())
        random.seed(5)
        with kit.session(folder):
            losses = [float(x) for _ in range(passes) for x in kit.train_once()]
        return losses, [p.tolist() for p in kit.model.parameters()]

    run(tmp_path / "a", 1)
    assert run(tmp_path / "a", 2) == run(tmp_path / "b", 2)


def test_the_cause_and_its_steps_are_told(tmp_path, caplog):
    caplog.set_level("INFO", "csrun")
    kit = Kit(LayerDrop())
    random.seed(5)
    with kit.session(tmp_path):
        kit.train_once()
    (cause,) = [r.message for r in caplog.records if "each step is recorded" in r.message]
    assert "test_recorded_parts.py:" in cause
    assert "forward draws numbers from random: each step is recorded" in cause
    performance = json.loads((tmp_path / "performance/performance.json").read_text())
    (line, count), *others = performance["recorded_steps"].items()
    assert not others
    assert line.endswith("forward draws numbers from random")
    assert count == 5  # of 6: the first one tells
    assert f"Recorded 5 steps after the first ones: {line} (5)" in caplog.text


def test_compiles_during_the_run_have_a_row_of_the_ledger(tmp_path, caplog):
    caplog.set_level("INFO", "csrun")
    kit = Kit(Counter())
    with kit.session(tmp_path):
        kit.train_once()
    took = [float(s) for s in re.findall(r"Compiled in ([\d.]+) seconds", caplog.text)]
    performance = json.loads((tmp_path / "performance/performance.json").read_text())
    rows = {row["row"]: row["seconds"] for row in performance["ledger"]}
    assert len(took) == 2  # the first of them before the training
    assert rows["compile"] >= took[1] - 0.01  # as far as the log's digits go


def deeper(kit, step, out):
    for _ in range(step):
        out = out.tanh()
    return out


def clamped(kit, step, out):
    return out.clamp(max=0.1 * step)


BRANCH = "aten.tanh.default", "branch: take fewer branches"
VALUE = "aten.clamp.default has different arguments", "value: pass what changes with"


@pytest.mark.parametrize(("change", "said"), [(deeper, BRANCH), (clamped, VALUE)])
def test_many_graphs_are_warned_of_and_replace_each_other(
    tmp_path, monkeypatch, caplog, change, said
):
    monkeypatch.setattr(program_limits, "MOST_GRAPHS", 3)
    monkeypatch.setattr(program_limits, "WARNED", (2,))

    def loop(kit):
        return [
            kit.update(kit.criterion(change(kit, step, kit.model(x)), y))
            for _ in range(2)
            for step, (x, y) in enumerate(kit.train)
        ]

    beside(loop, tmp_path)
    for has in ("has 2 programs, ", "has had more than 3 programs, "):
        (warning,) = (r.message for r in caplog.records if f"the step {has}" in r.message)
        what = rf"{said[0]}.*: the step {has}one for each {said[1]}"
        assert re.search(rf"test_recorded_parts.py:\d+: {what}", warning)


def test_a_count_of_hits_keeps_no_outputs_of_recorded_steps(tmp_path):
    kit, hits, held = Kit(), torch.tensor(0), []
    with kit.session(tmp_path, fast=False):
        for _ in range(3):
            for x, y in kit.train:
                kit.optimizer.zero_grad()
                out = kit.model(x)
                kit.criterion(out, y).backward()
                kit.optimizer.step()
                hits = hits + (out.argmax(1) == y).sum()
            gc.collect()
            held.append(
                sum(type(o) is torch.Tensor and o.shape == (8, 4) for o in gc.get_objects())
            )
    assert held[2] - held[1] < 2  # of six steps


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"fast": "no"}, "fast must be True or False, got 'no'"),
        ({"fats": False}, "did you mean fast"),
    ],
)
def test_a_wrong_option_is_refused(tmp_path, option, said):
    with pytest.raises(UsageError, match=rf"torch_loops.py:\d+: initialize: .*{said}"):
        Kit().session(tmp_path, **option)
