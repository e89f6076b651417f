"""Weights written by the loop between steps: used by the next step, in store and model."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402
from csrun.pytorch.loop.loop_steps import LoopSteps  # noqa: E402


def written(kit):
    losses = kit.train_once()
    best = {name: x.clone() for name, x in kit.model.state_dict().items()}
    losses += kit.train_once()
    kit.model.load_state_dict(best)
    losses += kit.train_once()
    with torch.no_grad():
        for p in kit.model.parameters():
            p.clamp_(-0.3, 0.3)
        torch._foreach_mul_(list(kit.model.parameters()), 0.9)
    return losses + kit.train_once()


def test_the_loop_may_write_weights_between_steps(tmp_path):
    beside(written, tmp_path)


def evaluated(kit):
    kit.model.eval()
    with torch.no_grad():
        return [kit.criterion(kit.model(x), y) for x, y in kit.val]


def halve(kit):
    with torch.no_grad():
        kit.model[0].weight.mul_(0.5)


def written_around_evaluations(kit):
    losses = kit.train_once()
    halve(kit)
    losses += evaluated(kit)
    halve(kit)
    return losses + evaluated(kit)


def test_what_was_evaluated_before_a_write_is_read_after_it(tmp_path):
    beside(written_around_evaluations, tmp_path)


def test_weights_are_written_between_evaluations_in_two_blocks(tmp_path):
    ours, theirs, found = Kit(), Kit(), []
    cbtorch.initialize(model_dir=tmp_path)
    ours.model, ours.val = cbtorch.module(ours.model), cbtorch.dataloader(ours.val)
    for _ in range(2):
        with cbtorch.Session(ours.model, criterion=ours.criterion, mode="eval"):
            found += evaluated(ours)
        halve(ours)
    expected = evaluated(theirs)
    halve(theirs)
    expected += evaluated(theirs)
    assert [float(x) for x in found] == pytest.approx([float(x) for x in expected], 1e-6)


def test_an_average_is_swapped_in_after_a_break_out_of_an_evaluation(tmp_path):
    """Also out of a recorded evaluation, as the first ones are."""

    def loop(kit):
        found, average = [], [torch.zeros_like(p) for p in kit.model.parameters()]
        for _ in range(3):
            found += kit.train_once()
            for mean, p in zip(average, kit.model.parameters(), strict=True):
                mean.lerp_(p.detach(), 0.5)
            kit.model.eval()
            with torch.no_grad():
                for step, (x, y) in enumerate(kit.val):
                    out = kit.model(x)
                    loss = kit.criterion(out, y)
                    if step == 1:
                        break
                hits = (out.argmax(1) == y).double().mean()
                for mean, p in zip(average, kit.model.parameters(), strict=True):
                    now = p.clone()
                    p.copy_(mean)
                    mean.copy_(now)
            found += [hits, loss.item()]
            kit.model.train()
        return found

    beside(loop, tmp_path)


def test_weights_are_not_written_within_a_step(tmp_path):
    kit = Kit()
    said = "is written between the loop's batch and optimizer.step"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for step, (x, y) in enumerate(kit.train):
            kit.criterion(kit.model(x), y).backward()
            if step == 4:
                kit.model[0].weight.data.mul_(0.5)
            kit.optimizer.step()
            kit.optimizer.zero_grad()


def test_weights_written_in_replayed_steps_come_from_the_checkpoint(tmp_path):
    def run(folder, passes):
        kit = Kit()
        with kit.session(folder):
            losses = []
            for _ in range(passes):
                losses += [float(x) for x in kit.train_once()]
                with torch.no_grad():
                    kit.model[0].weight.mul_(0.5)
        return losses, [p.tolist() for p in kit.model.parameters()]

    run(tmp_path / "a", 1)
    losses, weights = run(tmp_path / "a", 2)
    expected, after = run(tmp_path / "b", 2)
    assert losses == expected
    assert weights == after


def test_statistics_that_the_loop_resets(tmp_path):
    def loop(kit):
        losses = kit.train_once()
        kit.model[1].reset_running_stats()
        return losses + kit.train_once()

    beside(loop, tmp_path, nn.Linear(6, 4), nn.BatchNorm1d(4))


def test_an_error_of_an_evaluation_that_a_break_ends_is_raised(tmp_path, monkeypatch):
    """Python itself ignores errors of a generator that it frees."""

    def refuse(loop, step):
        raise UsageError("the evaluation is refused")

    kit = Kit()
    with pytest.raises(UsageError, match="the evaluation is refused"), kit.session(tmp_path):
        kit.model.eval()
        with torch.no_grad(), monkeypatch.context() as patched:
            patched.setattr(LoopSteps, "_leave_evaluation", refuse)
            for x, _ in kit.val:
                kit.model(x)
                break
        kit.model.train()
        kit.train_once()
