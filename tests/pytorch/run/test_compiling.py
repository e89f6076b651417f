"""micro_batch_size and recompute of a PyTorch loop: the results of the whole batch."""

import json

import msgspec
import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.programs import SYSTEM  # noqa: E402
from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn, optim  # noqa: E402
from torch.nn import functional as f  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402
from csrun.base.mode import ExecutionMode  # noqa: E402
from csrun.estimator.target import Target  # noqa: E402

STREAMING = ExecutionMode.WEIGHT_STREAMING


def one_hot(y):
    return f.one_hot(y, 4).double()


def scattered(x, y):
    return torch.zeros_like(x).scatter(1, y[:, None], 1.0)


CRITERIA = {
    "cross entropy": f.cross_entropy,
    "ignored": lambda x, y: f.cross_entropy(x, y, ignore_index=1),
    "smoothed": lambda x, y: f.cross_entropy(x, y, label_smoothing=0.1),
    "a sum": lambda x, y: f.cross_entropy(x, y, reduction="sum"),
    "a mean of each": lambda x, y: f.cross_entropy(x, y, reduction="none").mean(),
    "squares": lambda x, y: f.mse_loss(x, one_hot(y)),
    "a mean of the user's own": lambda x, y: ((x - one_hot(y)) ** 2).sum(1).sum() / len(y),
    "logistic": lambda x, y: f.binary_cross_entropy_with_logits(x, scattered(x, y)),
    "two means": lambda x, y: f.cross_entropy(x, y) + 0.1 * x.square().mean(),
}


@pytest.mark.parametrize("criterion", CRITERIA.values(), ids=CRITERIA)
def test_losses_and_weights_are_pytorchs(tmp_path, criterion):
    def loop(kit):
        kit.criterion = criterion
        return [*kit.train_once(), *kit.train_once()]

    beside(loop, tmp_path, settings={"micro_batch_size": 2})
    assert plans(tmp_path) == {(8, 4)}


@pytest.mark.parametrize("in_loss", [True, False], ids=["loss", "gradients"])
def test_a_penalty_on_weights_counts_once(tmp_path, in_loss):
    def loop(kit):
        losses = []
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y)
            if in_loss:
                loss = loss + 0.1 * sum(p.square().sum() for p in kit.model.parameters())
            loss.backward()
            if not in_loss:
                for parameter in kit.model.parameters():
                    parameter.grad.add_(parameter.detach(), alpha=0.2)
            kit.optimizer.step()
            losses.append(loss.item())
        return losses

    beside(loop, tmp_path, settings={"micro_batch_size": 2})
    assert plans(tmp_path) == {(8, 4)}


def plans(folder):
    """Batch and micro-batches of all compiles."""
    found = [json.loads(path.read_text()) for path in folder.glob("tfcs_*/plan.json")]
    return {(plan["batch_size"], plan["micro_batches"]) for plan in found}


def test_values_of_a_step_are_of_the_whole_batch(tmp_path):
    """Including a short last batch, and evaluations."""

    def loop(kit):
        found, norm = [], nn.utils.clip_grad_norm_
        for _ in range(3):
            kit.model.train()
            for x, y in kit.train:
                kit.optimizer.zero_grad()
                out = kit.model(x)
                loss = kit.criterion(out, y)
                loss.backward()
                norm(kit.model.parameters(), 0.5)
                kit.optimizer.step()
                found += [loss.item(), (out.argmax(1) == y).sum().item(), *out[:, 0].tolist()]
            kit.model.eval()
            with torch.no_grad():
                for x, y in kit.val:
                    out = kit.model(x)
                    found += [kit.criterion(out, y).item(), *out.argmax(1).tolist()]
        return found

    class Short(Kit):
        def __init__(self, *layers, **options):
            super().__init__(*layers, **options)
            self.train = DataLoader(self.train.dataset, 14)

    beside(loop, tmp_path, settings={"micro_batch_size": 7}, kit=Short)
    assert plans(tmp_path) == {(4, 1), (6, 1), (14, 2)}


def in_turn(kit):
    """Losses of alternating training and validation."""
    found = []
    for _ in range(3):
        kit.model.train()
        found += kit.train_once()
        kit.model.eval()
        with torch.no_grad():
            for x, y in kit.val:
                out = kit.model(x)
                found += [kit.criterion(out, y).item(), *out.argmax(1).tolist()]
    return found


class Apart(Kit):
    """Kit that trains on batches of 8 and validates on batches of 10."""

    def __init__(self, *layers, **options):
        super().__init__(*layers, **options)
        self.val = DataLoader(self.val.dataset, 10)


@pytest.mark.parametrize(("size", "parts"), [(4, {(8, 2), (10, 5)}), (8, {(8, 1), (10, 2)})])
def test_an_evaluation_has_parts_of_its_own_batches(tmp_path, size, parts):
    beside(in_turn, tmp_path, settings={"micro_batch_size": size}, kit=Apart)
    assert plans(tmp_path) == parts


def test_a_step_of_several_batches_has_parts_of_each(tmp_path):
    def loop(kit):
        losses = []
        for _ in range(2):
            kit.optimizer.zero_grad()
            for step, (x, y) in enumerate(kit.train, 1):
                loss = kit.criterion(kit.model(x), y) / 2
                loss.backward()
                losses.append(loss.detach())
                if step % 2 == 0:
                    kit.optimizer.step()
                    kit.optimizer.zero_grad()
        return losses

    beside(loop, tmp_path, settings={"micro_batch_size": 4})
    assert plans(tmp_path) == {(8, 2)}


@pytest.mark.parametrize("size", [3, 5])
def test_a_size_that_does_not_divide_the_batch_is_refused(tmp_path, size):
    kit = Kit()
    expected = rf":\d+: .*micro_batch_size must divide batch_size 8, got {size}: use "
    with pytest.raises(UsageError, match=expected), kit.session(tmp_path, micro_batch_size=size):
        kit.train_once()


def test_what_is_of_the_whole_batch_is_refused_with_its_line(tmp_path):
    kit = Kit(nn.Linear(6, 4), nn.BatchNorm1d(4))
    expected = r"\.py:\d+: layer 1: .* in 4 micro-batches: remove micro_batch_size"
    with pytest.raises(UsageError, match=expected), kit.session(tmp_path, micro_batch_size=2):
        kit.train_once()


class Wide(nn.Module):
    """Block with a wide hidden layer."""

    def __init__(self, drop=0.2):
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(8, 160), nn.Linear(160, 8), nn.Dropout(drop)

    def forward(self, x):
        return x + self.drop(self.down(f.gelu(self.up(x))))


class Blocks(Kit):
    """Network whose step needs most of its memory for activations."""

    def __init__(self, drop=0.2):
        torch.manual_seed(2)
        layers = (nn.Linear(6, 8), *(Wide(drop) for _ in range(3)), nn.Linear(8, 4))
        super().__init__(*layers, optimizer=lambda p: optim.Adam(p, 0.02))
        self.train = DataLoader(self.train.dataset, 48)


def trained(folder, **options):
    """Plan of a training step, its loss, and the weights after it."""
    kit = Blocks()
    with kit.session(folder, max_group_bytes=24000, **options):
        losses = [float(loss) for _ in range(2) for loss in kit.train_once()]
    (path,) = folder.glob("tfcs_*/plan.json")
    return json.loads(path.read_text()), losses, kit.model.state_dict()


def run_on(monkeypatch, nbytes):
    """Target a system with this much memory."""
    rows = nbytes // 1024 + 1
    size = {"fabric_width": 1, "usable_cores": rows, "fabric_height": rows}
    system = msgspec.structs.replace(SYSTEM, mode=STREAMING, sram_kb_per_core=1, **size)
    monkeypatch.setattr(
        "csrun.pytorch.run.run_programs.target_of",
        lambda *_: Target(None, None, system, STREAMING),
    )


def test_what_does_not_fit_is_made_again_or_in_parts(tmp_path, monkeypatch, caplog):
    run_on(monkeypatch, SYSTEM.sram_bytes)
    whole, losses, weights = trained(tmp_path / "whole")
    assert (whole["micro_batches"], whole["recomputed"]) == (1, [])
    run_on(monkeypatch, whole["arena_bytes"] * 9 // 10)
    with caplog.at_level("INFO", "csrun"):
        again, same, bits = trained(tmp_path / "again")
    assert again["micro_batches"] == 1
    assert f"Recomputation: {len(again['recomputed'])} segments are" in caplog.text
    assert same == losses
    assert all(torch.equal(bits[name], value) for name, value in weights.items())
    parts, near, close = trained(tmp_path / "none", recompute="none")
    assert parts["micro_batches"] > 1
    assert not parts["recomputed"]
    assert near == pytest.approx(losses, rel=1e-12)
    for name, value in weights.items():
        torch.testing.assert_close(close[name], value, rtol=1e-9, atol=1e-12, msg=name)


class Wider(Blocks):
    """Kit that trains on batches of 4 and validates on batches of 48."""

    def __init__(self):
        super().__init__(drop=0.0)
        self.train, self.val = DataLoader(self.train.dataset, 4), self.train


def test_an_evaluation_too_large_next_to_a_training_gets_micro_batches(tmp_path, monkeypatch):
    """Training and evaluation use their shared memory in turn."""

    def found(folder):
        return [
            json.loads(path.read_text()) for path in (tmp_path / folder).glob("tfcs_*/plan.json")
        ]

    run_on(monkeypatch, SYSTEM.sram_bytes)
    options = {"max_group_bytes": 24000}
    beside(in_turn, tmp_path / "whole", settings=options, kit=Wider)
    most = max(plan["arena_bytes"] for plan in found("whole"))
    run_on(monkeypatch, most * 9 // 10)
    beside(in_turn, tmp_path / "parts", settings=options, kit=Wider)
    parts = {plan["batch_size"]: plan["micro_batches"] for plan in found("parts")}
    assert parts[4] == 1
    assert parts[48] > 1
