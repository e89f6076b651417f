"""PyTorch's GradScaler and autocast in a loop, compared with PyTorch."""

import logging
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from safetensors.numpy import load_file  # noqa: E402
from support.scaled_loops import LARGE, LONGEST, STEPS, Script, equal  # noqa: E402
from torch import nn  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_scalers_of_pytorch_follow_pytorchs_rule(tmp_path, device):
    """Compared with PyTorch's own scaler, given the same overflows."""
    options = {"init_scale": LARGE, "growth_interval": 4}
    script = Script(lambda: torch.amp.GradScaler(device, **options))
    script.train(tmp_path, step=script.reading_step)
    theirs, weight = torch.amp.GradScaler("cpu", **options), nn.Parameter(torch.zeros(1))
    optimizer, before = torch.optim.SGD([weight], 0.0), LARGE
    for scale in script.scales:
        theirs.scale(weight.sum()).backward()
        weight.grad.fill_(float("inf") if scale < before else 1.0)
        theirs.step(optimizer)
        theirs.update()
        assert theirs.get_scale() == scale
        before = scale
    assert max(b / a for a, b in pairwise(script.scales)) == 2
    if device == "cpu":
        assert script.scaler.state_dict()["scale"] == script.scales[-1]


def test_a_loop_detects_skipped_steps_as_in_pytorch(tmp_path):
    """By the scale before and after `update`; Adam's bias correction excludes skipped steps."""

    def step(script, x, y):
        script.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = script.loss(x, y)
        script.scaler.scale(loss).backward()
        script.scaler.step(script.optimizer)
        before = script.scaler.get_scale()
        script.scaler.update()
        script.scales.append((before, script.scaler.get_scale()))

    ours, theirs = (Script(torch.amp.GradScaler("cpu", init_scale=LARGE)) for _ in range(2))
    weights = ours.train(tmp_path, epochs=3, step=lambda x, y: step(ours, x, y))
    for _ in range(3):
        for x, y in theirs.loader:
            step(theirs, x, y)
    assert ours.scales == theirs.scales
    skipped = sum(now < before for before, now in ours.scales)
    assert skipped > 2
    for script in (ours, theirs):
        (state, *_) = script.optimizer.state_dict()["state"].values()
        assert state["step"] == 3 * STEPS - skipped
    found = load_file(tmp_path / f"model-ckpt-{3 * STEPS}.safetensors")
    assert found["skipped_steps"] == skipped
    losses = [[float(loss) for loss in script.losses] for script in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)
    for own, their in zip(weights, theirs.model.parameters(), strict=True):
        assert torch.linalg.norm(own - their) < 0.01 * torch.linalg.norm(their)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("is_in_block", [False, True])
def test_a_script_saves_and_loads_pytorchs_scaler(tmp_path, device, is_in_block):
    def made(**options):
        return lambda: torch.amp.GradScaler(device, **options)

    first = Script(made(init_scale=LARGE, growth_interval=3))
    first.train(tmp_path / "first", epochs=3)
    saved = first.scaler.state_dict()
    assert (saved["growth_interval"], saved["scale"] < LARGE) == (3, True)
    second, begun = Script(made()), []

    def step(x, y):
        if not begun and is_in_block:
            second.scaler.load_state_dict(saved)
        begun.append(second.scaler.get_scale())
        second.later_step(x, y)

    if not is_in_block:
        cbtorch.initialize(model_dir=tmp_path / "second")
        second.scaler = second.scaler()
        second.scaler.load_state_dict(saved)
    second.train(tmp_path / "second", epochs=1, step=step)
    assert begun[0] == saved["scale"]
    assert second.scaler.state_dict()["growth_interval"] == 3


def test_a_state_loaded_between_sessions_must_be_the_runs(tmp_path):
    script = Script(torch.amp.GradScaler("cpu", init_scale=64.0))
    script.train(tmp_path, epochs=1)
    loader = cbtorch.dataloader(script.loader)

    def train_again():
        with cbtorch.Session(script.model, script.optimizer, mode="train"):
            for x, y in loader:
                script.optimizer.zero_grad()
                script.later_step(x, y)

    saved = script.scaler.state_dict()
    script.scaler.load_state_dict(saved)
    train_again()
    assert script.scaler.state_dict()["_growth_tracker"] == 2 * STEPS
    script.scaler.load_state_dict({**saved, "scale": 32.0})
    with pytest.raises(UsageError, match=r"scaled_loops.py:\d+: the scale or an option of a Grad"):
        train_again()


def test_the_state_of_a_disabled_scaler_is_refused(tmp_path):
    script = Script(torch.amp.GradScaler("cpu"))
    with pytest.raises(RuntimeError, match="saved from a disabled instance"):
        script.train(tmp_path, step=lambda x, y: script.scaler.load_state_dict({}))


def test_a_scaler_of_a_float32_run_has_no_effect(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="csrun")
    plain, scaled = Script(cbtorch.amp.GradScaler()), Script(torch.amp.GradScaler("cpu"))
    ours = plain.train(tmp_path / "plain", precision="float32")
    assert equal(scaled.train(tmp_path / "scaled", precision="float32"), ours)
    assert sum("a float32 run: the loss is not scaled" in line for line in caplog.messages) == 1


def test_autocast_leaves_a_mixed_run_as_it_is(tmp_path):
    plain, cast = Script(cbtorch.amp.GradScaler(64.0)), Script(cbtorch.amp.GradScaler(64.0))

    def step(x, y):
        with torch.autocast("cpu", torch.float16):
            loss = cast.loss(x, y)
        cast.scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(cast.model.parameters(), LONGEST)
        cast.scaler.step(cast.optimizer)

    ours = plain.train(tmp_path / "plain", epochs=2)
    assert equal(cast.train(tmp_path / "cast", epochs=2, step=step), ours)
    other = Script(cbtorch.amp.GradScaler())
    cast.model, cast.optimizer, cast.scaler = other.model, other.optimizer, other.scaler
    with pytest.raises(UsageError, match='precision="mixed_float16", or leave autocast out'):
        cast.train(tmp_path / "float32", step=step, precision="float32")
