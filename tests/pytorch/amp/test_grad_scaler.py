"""Loss scaling in a PyTorch loop by csrun's scaler: both forms, clipping, checkpoints, errors."""

import copy
import logging
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from safetensors.numpy import load_file  # noqa: E402
from support.scaled_loops import LARGE, LONGEST, STEPS, Script, equal  # noqa: E402
from support.two_classes import summaries  # noqa: E402
from torch import nn  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import CsrunError, UsageError  # noqa: E402

LARGEST = 0.02  # the magnitude that they are clipped to
SCALE = 2.0**10
GRADIENTS = 0.01  # of a gradient's norm, the difference from autocast's


def dynamic(**options):
    return lambda: cbtorch.amp.GradScaler(
        "dynamic", initial_loss_scale=LARGE, max_loss_scale=LARGE, **options
    )


def test_both_forms_skip_steps_until_the_scale_fits(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="csrun")
    script = Script(dynamic())
    first = script.train(tmp_path / "one", step=script.first_step)
    later = Script(dynamic())
    assert equal(later.train(tmp_path / "two", step=later.reading_step), first)
    skipped = sum(now < before for before, now in pairwise([LARGE, *later.scales]))
    assert skipped > 2
    assert later.scales[-1] == LARGE / 2**skipped
    found = load_file(tmp_path / "one" / f"model-ckpt-{4 * STEPS}.safetensors")
    assert found["loss_scale"] == later.scales[-1]
    assert found["steps_since_rescale"] == later.scales[::-1].index(2 * later.scales[-1]) - 1
    assert found["overflows_since_rescale"] == 0
    assert later.scaler.state_dict() == {
        name: float(found[name])
        for name in ("loss_scale", "steps_since_rescale", "overflows_since_rescale")
    }
    events = summaries(tmp_path / "one")
    scales = [events[n, "train/loss_scale"].simple_value for n in range(1, 4 * STEPS + 1)]
    assert scales == later.scales
    assert any(line.startswith("Loss scale 134217728 after") for line in caplog.messages)


def test_recorded_steps_and_micro_batches_scale_alike(tmp_path):
    def trained(name, **options):
        script = Script(dynamic())  # Adam's first updates depend on roundings near zero
        script.optimizer = torch.optim.SGD(script.model.parameters(), 0.1, momentum=0.9)
        return script.train(tmp_path / name, **options)

    fast = trained("fast")
    assert equal(trained("recorded", fast=False), fast)
    torch.testing.assert_close(trained("parts", micro_batch_size=8), fast, rtol=0.02, atol=0.002)


@pytest.mark.parametrize("precision", ["mixed_float16", "mixed_bfloat16"])
def test_a_power_of_two_changes_no_bit_of_normal_numbers(tmp_path, precision):
    plain = Script()
    plain.scaler = cbtorch.amp.GradScaler(1.0)
    scaled = Script(cbtorch.amp.GradScaler(4.0))
    ours = plain.train(tmp_path / "plain", precision=precision, epochs=2)
    theirs = scaled.train(tmp_path / "scaled", precision=precision, epochs=2)
    if precision == "mixed_bfloat16":  # none of its numbers is subnormal here
        assert equal(ours, theirs)
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.02)


def test_gradients_and_their_norm_are_read_unscaled(tmp_path):
    script, read = Script(cbtorch.amp.GradScaler(2.0**12)), {}
    copies = [copy.deepcopy(script.model.state_dict())]

    def step(x, y):
        script.scaler.scale(script.loss(x, y)).backward()
        norm = nn.utils.clip_grad_norm_(script.model.parameters(), 1e9)
        gradients = [p.grad.numpy().copy() for p in script.model.parameters()]
        read[len(copies)] = list(map(torch.from_numpy, gradients)), norm.item()
        script.scaler.step(script.optimizer)
        copies.append(copy.deepcopy(dict(script.model.state_dict())))

    script.train(tmp_path, epochs=1, step=step)
    for number, (gradients, norm) in read.items():
        plain = Script().model
        plain.load_state_dict(copies[number - 1])
        x, y = list(Script().loader)[number - 1]
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(plain(x), y)
        (loss * 2.0**12).backward()
        theirs = [p.grad / 2.0**12 for p in plain.parameters()]
        for ours, own in zip(gradients, theirs, strict=True):
            assert torch.linalg.norm(ours - own) <= GRADIENTS * torch.linalg.norm(own)
        assert norm == pytest.approx(nn.utils.get_total_norm(theirs).item(), rel=GRADIENTS)


def test_a_resumed_training_has_the_bits_and_scales_of_one(tmp_path):
    options = {"precision": "mixed_float16", "save_checkpoints_steps": STEPS}
    one, two, again = (Script(dynamic(steps_per_increase=5)) for _ in range(3))
    whole = one.train(tmp_path / "one", step=one.reading_step, **options)
    two.train(tmp_path / "two", 2, step=two.reading_step, **options)
    assert equal(again.train(tmp_path / "two", step=again.reading_step, **options), whole)
    assert again.scales == one.scales
    name = f"model-ckpt-{4 * STEPS}.safetensors"
    assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_accumulated_batches_have_one_scale(tmp_path):
    def trained(folder, scaler):
        script, made = Script(scaler), []

        def step(x, y):
            script.scaler.scale(script.loss(x, y) / 2).backward()
            made.append(None)
            if len(made) % 2 == 0:
                script.scaler.step(script.optimizer)

        cbtorch.initialize(model_dir=folder, precision="mixed_bfloat16")
        script.model = cbtorch.module(script.model)
        loader = cbtorch.dataloader(script.loader)
        with cbtorch.Session(script.model, script.optimizer, mode="train"):
            for _ in range(2):
                for x, y in loader:
                    if len(made) % 2 == 0:
                        script.optimizer.zero_grad()
                    step(x, y)
        return [p.detach().clone() for p in script.model.parameters()]

    plain = trained(tmp_path / "plain", cbtorch.amp.GradScaler(1.0))
    scaled = trained(tmp_path / "scaled", cbtorch.amp.GradScaler(1024.0))
    assert equal(plain, scaled)


def test_scaled_gradients_are_clipped_by_value_as_pytorch_does(tmp_path):
    def made():
        script = Script(cbtorch.amp.GradScaler(SCALE))
        script.optimizer = torch.optim.SGD(script.model.parameters(), 0.5)
        return script

    def step(script, x, y):
        script.scaler.scale(script.loss(x, y)).backward()
        script.scaler.unscale_(script.optimizer)
        nn.utils.clip_grad_value_(script.model.parameters(), LARGEST)
        script.scaler.step(script.optimizer)

    def of_amp(script, x, y):
        loss, options = script.loss(x, y), {"max_gradient_value": LARGEST}
        cbtorch.amp.optimizer_step(loss, script.optimizer, script.scaler, **options)

    one, two, theirs = made(), made(), made()
    ours = one.train(tmp_path / "one", epochs=1, step=lambda x, y: step(one, x, y))
    assert equal(two.train(tmp_path / "two", 1, step=lambda x, y: of_amp(two, x, y)), ours)
    first, clipped = [p.detach().clone() for p in theirs.model.parameters()], 0
    for x, y in theirs.loader:
        theirs.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = theirs.loss(x, y)
        (loss * SCALE).backward()
        for parameter in theirs.model.parameters():
            parameter.grad /= SCALE
            clipped += int((parameter.grad.abs() > LARGEST).sum())
        nn.utils.clip_grad_value_(theirs.model.parameters(), LARGEST)
        theirs.optimizer.step()
    assert clipped > 50 * STEPS
    for own, their, start in zip(ours, theirs.model.parameters(), first, strict=True):
        moved = their.detach() - start
        assert torch.linalg.norm(own - start - moved) <= 2 * GRADIENTS * torch.linalg.norm(moved)


def test_cb16_without_dynamic_scaling_has_a_line(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="csrun")
    for number, loss_scale in enumerate((1.0, 8.0, "dynamic")):
        script = Script(cbtorch.amp.GradScaler(loss_scale))
        script.train(tmp_path / str(number), epochs=1, precision="mixed_cbfloat16")
    lines = [line for line in caplog.messages if "CB16 without dynamic loss scaling" in line]
    assert len(lines) == 2
    assert all("scaled_loops.py:" in line for line in lines)


def test_the_smallest_scale_that_overflows_ends_the_run(tmp_path):
    script = Script(dynamic(min_loss_scale=LARGE))
    with pytest.raises(CsrunError, match="Minimum loss scale threshold was reached"):
        script.train(tmp_path)


def test_the_limit_of_a_scaler_clips(tmp_path):
    clipped = Script(cbtorch.amp.GradScaler(64.0))
    theirs = clipped.train(tmp_path / "clipped", epochs=1)
    limited = Script(cbtorch.amp.GradScaler(64.0, max_gradient_norm=LONGEST))

    def step(x, y):
        limited.scaler(limited.loss(x, y)).backward()
        limited.optimizer.step()

    assert equal(limited.train(tmp_path / "limited", epochs=1, step=step), theirs)


def test_optimizer_step_makes_a_whole_step(tmp_path):
    theirs = Script(dynamic()).train(tmp_path / "theirs")
    script = Script(dynamic())

    def step(x, y):
        cbtorch.amp.optimizer_step(
            script.loss(x, y), script.optimizer, script.scaler, max_gradient_norm=LONGEST
        )

    assert equal(script.train(tmp_path / "ours", step=step), theirs)
    with pytest.raises(ValueError, match="give one"):
        cbtorch.amp.optimizer_step(None, None, None, 1.0, 1.0)
    with pytest.raises(ValueError, match="must be >= 0"):
        cbtorch.amp.optimizer_step(None, None, None, -1.0)


def unscaled_later(script, x, y):
    loss = script.loss(x, y)
    (loss if len(script.losses) > 4 else script.scaler.scale(loss)).backward()
    script.optimizer.step()


def by_another(script, x, y):
    scaler = cbtorch.amp.GradScaler(8.0)
    scaler.scale(script.loss(x, y)).backward()
    scaler.step(script.optimizer)


def edited(script, x, y):
    script.scaler.scale(script.loss(x, y)).backward()
    for parameter in script.model.parameters():
        parameter.grad.mul_(0.5)
    script.scaler.step(script.optimizer)


def of_a_gradient(script, x, y):
    script.scaler.scale(script.loss(x, y)).backward(torch.tensor(2.0))
    script.scaler.step(script.optimizer)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (unscaled_later, r"py:\d+: the loss is not scaled by a GradScaler in this step and was"),
        (by_another, r"py:\d+: a loss is scaled by another GradScaler than in earlier steps"),
        (edited, r"py:\d+: the gradient of 0.weight is edited, and the loss is scaled"),
        (of_a_gradient, r"py:\d+: "),
    ],
)
def test_refused_loops(tmp_path, step, message):
    script = Script(cbtorch.amp.GradScaler(8.0))
    with pytest.raises(UsageError, match=message):
        script.train(tmp_path, step=lambda x, y: step(script, x, y))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_scale": "often"}, "loss_scale must be dynamic, tf_dynamic or a number > 0"),
        ({"loss_scale": -1}, "got -1"),
        ({"loss_scale": "dynamic", "min_loss_scale": 1e-9}, "min_loss_scale too small"),
        ({"loss_scale": "dynamic", "max_loss_scale": 1e39}, "max_loss_scale must be at most"),
        ({"max_gradient_norm": -2.0}, "max_gradient_norm must be >= 0, got -2.0"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(UsageError, match=message):
        cbtorch.amp.GradScaler(**options)


def test_the_dialects_of_a_scaler():
    later, first = cbtorch.amp.GradScaler("dynamic"), cbtorch.amp.GradScaler("tf_dynamic")
    assert (later.scaling().overflow_tolerance, later.scaling().exceeds) == (0.0, True)
    assert (first.scaling().overflow_tolerance, first.scaling().exceeds) == (0.05, False)
    capped = cbtorch.amp.GradScaler("dynamic", init_scale=2.0**20, max_loss_scale=2.0**16)
    assert capped.get_scale() == 2.0**16


def test_a_step_with_its_own_updates_is_float32(tmp_path):
    """In 16 bits a running mean of squares would underflow."""
    script = Script(lambda: cbtorch.amp.GradScaler("dynamic"))
    script.optimizer = torch.optim.Rprop(script.model.parameters(), 1e-2)
    with pytest.raises(UsageError, match="leave precision mixed_float16 out"):
        script.train(tmp_path)
