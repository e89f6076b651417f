"""Mixtures of experts: rows routed by indices from the batch or from weights."""

import json
import re

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import beside  # noqa: E402
from torch import nn  # noqa: E402

from csrun.pytorch.loop import program_limits  # noqa: E402

WEIGHTS = "the shape of a result depends on weights"


class Experts(nn.Module):
    """Two experts. by: values that choose an expert; how: select rows, or compute all."""

    def __init__(self, by, how="nonzero"):
        super().__init__()
        self.gate, self.by, self.how = nn.Linear(6, 2), by, how
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 5), nn.Tanh()) for _ in range(2))
        self.last = nn.Linear(5, 4)

    def forward(self, x):
        weights = self.gate(x).softmax(1)
        expert = weights.argmax(1) if self.by == "weights" else (x[:, 0] > 0).long()
        out = torch.zeros(len(x), 5, dtype=x.dtype)
        for number, module in enumerate(self.experts):
            if self.how == "dense":
                mine = torch.where(expert == number, weights[:, number], 0.0)
                out = out + module(x) * mine[:, None]
                continue
            if self.how == "nonzero":
                rows = (expert == number).nonzero().squeeze(1)
            else:
                (rows,) = torch.where(expert == number)
            given = x.index_select(0, rows)
            out = out.index_add(0, rows, module(given) * weights[rows, number, None])
        return self.last(out)


class Combined(nn.Module):
    """Rows of an expert are added to zeros that require a gradient, as in moe.py of D. Rau."""

    def __init__(self):
        super().__init__()
        self.expert, self.last = nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x):
        zeros = torch.zeros(len(x), 5, dtype=x.dtype, requires_grad=True)
        rows = torch.arange(0, len(x), 2)
        scale = nn.Parameter(torch.full((5,), 2.0, dtype=x.dtype))
        return self.last(zeros.index_add(0, rows, self.expert(x)[rows]) * scale)


def two_passes(kit):
    return [*kit.train_once(), *kit.train_once()]


def causes(folder):
    found = json.loads((folder / "performance" / "performance.json").read_text())
    return list(found["recorded_steps"])


@pytest.mark.parametrize("how", ["nonzero", pytest.param("where", marks=pytest.mark.slow)])
def test_experts_are_chosen_by_the_batch(tmp_path, how):
    beside(two_passes, tmp_path, Experts("batch", how))
    assert not causes(tmp_path), "each count has its own program"


def test_experts_are_chosen_by_weights(tmp_path):
    beside(two_passes, tmp_path, Experts("weights"))
    (cause,) = causes(tmp_path)
    assert WEIGHTS in cause


@pytest.mark.parametrize("fast", [True, False])
def test_a_tensor_that_forward_creates_may_require_a_gradient(tmp_path, fast):
    beside(two_passes, tmp_path, Combined(), settings={"fast": fast})


def test_a_loss_of_what_a_mask_leaves(tmp_path):
    def run(kit):
        kit.criterion = lambda out, y: (out[out > 0] - 1).square().sum()
        return two_passes(kit)

    beside(run, tmp_path)
    (cause,) = causes(tmp_path)
    assert WEIGHTS in cause


def test_more_counts_than_programs_run_and_the_dense_form_has_one(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(program_limits, "MOST_GRAPHS", 2)
    beside(two_passes, tmp_path / "many", Experts("weights"))
    said = rf"test_experts.py:\d+: {WEIGHTS}.* more than 2 programs, .*: use torch.where"
    assert re.search(said, caplog.text)
    caplog.clear()
    beside(two_passes, tmp_path / "dense", Experts("weights", "dense"))
    assert "programs" not in caplog.text


def test_a_program_of_one_combination_is_compiled_once(tmp_path, caplog):
    """The loop reads a loss term after the step, so that its program returns the term, too."""

    def run(kit):
        read = []
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            out = kit.model(x)
            loss = kit.criterion(out, y)
            (loss + out.square().mean()).backward()
            kit.optimizer.step()
            read.append(loss.item())
        return read

    caplog.set_level("INFO", "csrun")
    beside(run, tmp_path, Experts("weights"))
    assert caplog.text.count("Compiled in") > 3
    # the first program is compiled before the loop has read the term
    assert caplog.text.count("Recompiling") <= 1
