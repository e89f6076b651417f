"""Gradient accumulation over several batches, against the same loops in PyTorch."""

import contextlib
import re
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit  # noqa: E402
from torch import nn, optim  # noqa: E402
from torch.optim.lr_scheduler import LambdaLR  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402
from csrun.pytorch.run.compiling import Compiling  # noqa: E402

OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, 0.05, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, 0.01),
}


def kit_of(*layers, dtype=torch.float64, **options):
    """Kit of six batches a pass, shuffled each time, the last one of five samples."""
    made = Kit(*layers, **options)
    made.model.to(dtype)
    torch.manual_seed(5)
    x, y = torch.randn(45, 6, dtype=dtype), torch.randint(4, (45,))
    made.train = DataLoader(TensorDataset(x, y), 8, shuffle=True)
    made.val = DataLoader(TensorDataset(x[:21], y[:21]), 8)
    made.scheduler = LambdaLR(made.optimizer, lambda step: min(1, (step + 1) / 5))
    torch.manual_seed(6)
    return made


def clip(kit):
    nn.utils.clip_grad_norm_(kit.model.parameters(), 0.05)


def accumulate(kit, k=4, passes=3, edit=lambda kit: None, ends=None, read=lambda loss: loss):
    """The usual accumulation loop. ends: batches of a pass that are followed by a step."""
    ends = ends or (lambda number: number % k == 0 or number == len(kit.train))
    losses = []
    for _ in range(passes):
        for number, (x, y) in enumerate(kit.train, 1):
            loss = kit.criterion(kit.model(x), y) / k
            loss.backward()
            losses.append(read(loss.detach()))
            if ends(number):
                edit(kit)
                kit.optimizer.step()
                kit.scheduler.step()
                kit.optimizer.zero_grad()
    return losses


def carries_over(kit):
    return accumulate(kit, passes=4, ends=lambda number: number == 4)


def ends_with_the_first(kit):
    return accumulate(kit, ends=lambda number: number % 4 == 1)


def reads_each_and_clips(kit):
    return accumulate(kit, edit=clip, read=float)


def clips_in_the_first_steps(kit):
    return accumulate(kit, 2, edit=clip)


def clips_from_the_third_pass_on(kit):
    return [*accumulate(kit, passes=2), *accumulate(kit, edit=clip, passes=2)]


def reads_before_backward(kit):
    losses = []
    for _ in range(3):
        for number, (x, y) in enumerate(kit.train, 1):
            loss = kit.criterion(kit.model(x), y)
            losses.append(loss.item())
            loss.backward()
            if number % 2 == 0:
                kit.optimizer.step()
                kit.optimizer.zero_grad()
    return losses


def clears_at_the_group(kit):
    """Loop that clears at each group's start, discarding the gradients of batches five and six."""
    losses = []
    for _ in range(3):
        for number, (x, y) in enumerate(kit.train):
            if number % 4 == 0:
                kit.optimizer.zero_grad(set_to_none=False)
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            losses.append(loss.detach())
            if number == 3:
                kit.optimizer.step()
    return losses


def leaves_batches_out(kit):
    """Loop that skips batches with a large loss, and discards gradients before them."""
    losses = []
    for _ in range(3):
        for number, (x, y) in enumerate(kit.train, 1):
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            losses.append(loss.item())
            if losses[-1] > 1.5:
                kit.optimizer.zero_grad()
            elif number % 3 == 0:
                kit.optimizer.step()
                kit.optimizer.zero_grad()
    return losses


def ends_behind_the_pass(kit):
    losses = []
    for _ in range(3):
        losses += accumulate(kit, passes=1, ends=lambda number: number == 4)
        kit.optimizer.step()
        kit.model.zero_grad()
    return losses


def validates_between(kit):
    losses = []
    for _ in range(3):
        losses += accumulate(kit, passes=1, ends=lambda number: number == 4)
        kit.model.eval()
        with torch.no_grad():
            losses += [kit.criterion(kit.model(x), y).item() for x, y in kit.val]
        kit.model.train()
    return losses


def clips_by_value(kit):
    value = nn.utils.clip_grad_value_
    return accumulate(kit, 3, edit=lambda k: value(k.model.parameters(), 0.01))


def clips_by_value_at_once(kit):
    value = nn.utils.clip_grad_value_
    return accumulate(kit, 3, edit=lambda k: value(k.model.parameters(), 0.01, foreach=True))


def edits_what_has_run(kit, edit):
    losses = accumulate(kit, 2)
    for x, y in kit.train:
        loss = kit.criterion(kit.model(x), y) / 2
        loss.backward()
        losses.append(loss.item())
        edit(kit)
        kit.optimizer.step()
        kit.optimizer.zero_grad()
    return losses


def clips_what_has_run(kit):
    value = nn.utils.clip_grad_value_
    return edits_what_has_run(kit, lambda k: value(k.model.parameters(), 0.01))


def counts_hits(kit):
    found, hits = [], 0
    for _ in range(3):
        for number, (x, y) in enumerate(kit.train, 1):
            out = kit.model(x)
            kit.criterion(out, y).backward()
            hits += (out.argmax(1) == y).sum() * number
            if number % 3 == 0:
                kit.optimizer.step()
                kit.optimizer.zero_grad()
        found.append(hits)
    return found


LOOPS = (
    *(carries_over, ends_with_the_first, reads_each_and_clips, clips_in_the_first_steps),
    *(clips_from_the_third_pass_on, reads_before_backward, clears_at_the_group),
    *(leaves_batches_out, validates_between, counts_hits, ends_behind_the_pass),
    *(clips_by_value, clips_by_value_at_once, clips_what_has_run),
)


def beside(loop, folder, exactly=1e-10, settings=None, **options):
    ours, theirs = kit_of(**options), kit_of(**options)
    torch.manual_seed(7)
    with ours.session(folder, save_checkpoints_steps=2, **(settings or {})):
        found = [float(number) for number in loop(ours)]
    torch.manual_seed(7)
    expected = [float(number) for number in loop(theirs)]
    torch.testing.assert_close(found, expected, rtol=exactly, atol=exactly)
    for name, value in ours.model.state_dict().items():
        their = theirs.model.state_dict()[name]
        torch.testing.assert_close(value, their, rtol=exactly, atol=exactly, msg=name)
    return ours


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_batches_that_are_added_up_are_pytorchs(tmp_path, loop):
    beside(loop, tmp_path, optimizer=OPTIMIZERS["sgd"])


def test_in_float32_and_with_adamw_in_float64(tmp_path):
    beside(accumulate, tmp_path / "32", 1e-6, dtype=torch.float32, optimizer=OPTIMIZERS["sgd"])
    ours = beside(accumulate, tmp_path / "64", optimizer=OPTIMIZERS["adamw"])
    (first, *_) = ours.optimizer.state_dict()["state"].values()
    assert first["step"] == 6  # three passes of two


def test_each_batch_may_be_computed_in_parts(tmp_path):
    half = {"micro_batch_size": 4}
    beside(clips_in_the_first_steps, tmp_path, settings=half, optimizer=OPTIMIZERS["sgd"])


def test_on_several_systems_they_are_refused():
    compiling = Compiling(None, SimpleNamespace(systems=("cs2-01", "cs2-02")))
    with pytest.raises(
        UsageError, match=r"test_gradient_accumulation.py:[0-9]+: .* one CS system, got num"
    ):
        compiling.accumulate()


def test_a_step_is_one_of_the_optimizer_and_one_compile_serves_all(tmp_path, caplog):
    with caplog.at_level("INFO", "csrun"):
        beside(accumulate, tmp_path, optimizer=OPTIMIZERS["sgd"])
    assert (tmp_path / "model-ckpt-6.safetensors").exists()
    assert len(list(tmp_path.glob("tfcs_*"))) == 2  # whole batches, and the last one
    assert sum("Compiled in" in line for line in caplog.messages) == 2


class KilledError(Exception):
    """Raised to end the script."""


@pytest.mark.parametrize("kills", [(5, 16), pytest.param((9, 11), marks=pytest.mark.slow)], ids=str)
def test_a_script_that_is_killed_amid_a_step_goes_on_as_one_run(tmp_path, kills):
    def loop(kit, last=None):
        found, total = [], 0.0
        for _ in range(4):
            for number, (x, y) in enumerate(kit.train, 1):
                loss = kit.criterion(kit.model(x), y)
                if len(found) + 1 == last:
                    raise KilledError
                loss.backward()
                found.append(loss.item() if number % 2 else loss.detach())
                total += loss.detach()
                if number % 4 == 0 or number == len(kit.train):
                    clip(kit)
                    kit.optimizer.step()
                    kit.scheduler.step()
                    kit.optimizer.zero_grad()
        return [*map(float, found), float(total)]

    torch.manual_seed(2)
    layers = nn.Linear(6, 9), nn.Dropout(0.5), nn.Linear(9, 4)
    for kill in kills:
        ours = kit_of(*layers)
        with contextlib.suppress(KilledError), ours.session(tmp_path / "killed"):
            loop(ours, kill)
    found = []
    for folder in ("killed", "whole"):
        ours = kit_of(*layers)
        with ours.session(tmp_path / folder):
            found.append(loop(ours))
        found.append([value.tolist() for value in ours.model.state_dict().values()])
    assert found[:2] == found[2:]


def test_dropout_masks_differ_between_accumulated_batches(tmp_path):
    """With equal masks, the batches, which are equal, would have equal losses."""

    def loop(kit, read):
        losses = []
        for number, (x, y) in enumerate(kit.train, 1):
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            losses.append(read(loss.detach()))
            if number % 3 == 0:
                kit.optimizer.step()
                kit.optimizer.zero_grad()
        return [float(loss) for loss in losses]

    found = []
    for folder, read in (("each", float), ("late", lambda loss: loss)):
        torch.manual_seed(2)
        kit = kit_of(nn.Dropout(0.5), nn.Linear(6, 4), optimizer=lambda p: optim.SGD(p, 0.0))
        with torch.no_grad():
            kit.model[1].bias.zero_()
        ones, zeros = torch.ones(48, 6, dtype=torch.float64), torch.zeros(48, dtype=torch.int64)
        kit.train = DataLoader(TensorDataset(ones, zeros), 8)
        with kit.session(tmp_path / folder):
            found.append(loop(kit, read))
    interpreted, computed = found
    assert interpreted == pytest.approx(computed, rel=1e-12)
    assert len({round(loss, 9) for loss in computed}) == 6


def edits_each(kit):
    for number, (x, y) in enumerate(kit.train, 1):
        kit.criterion(kit.model(x), y).backward()
        clip(kit)
        if number % 3 == 0:
            kit.optimizer.step()
            kit.optimizer.zero_grad()


def clears_some(kit):
    for number, (x, y) in enumerate(kit.train, 1):
        if number % 3 == 2:
            kit.model[0].zero_grad()
        kit.criterion(kit.model(x), y).backward()


def halves_the_sum(kit):
    accumulate(kit, 3, edit=lambda k: [p.grad.mul_(0.5) for p in k.model.parameters()])


def freezes_amid_a_step(kit):
    for number, (x, y) in enumerate(kit.train, 1):
        kit.criterion(kit.model(x), y).backward()
        kit.model[0].requires_grad_(number % 2 == 0)


def halves_what_has_run(kit):
    edits_what_has_run(kit, lambda k: [p.grad.mul_(0.5) for p in k.model.parameters()])


def keeps_statistics(kit):
    accumulate(kit, 2)


REFUSED = {
    edits_each: "gradients are edited before another batch is accumulated",
    clears_some: "has a gradient already, and others were cleared: clear all of them",
    halves_what_has_run: "gradients are edited differently than in earlier steps, and this",
    halves_the_sum: "accumulated gradients are edited: clip all parameters",
    freezes_amid_a_step: "got a gradient in some batches of the step and not in others",
    keeps_statistics: "forward writes the buffer 1.num_batches_tracked",
}


@pytest.mark.parametrize("loop", REFUSED, ids=lambda loop: loop.__name__)
def test_sums_that_would_not_be_pytorchs_are_refused(tmp_path, loop):
    layers = (nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 4))
    kit = kit_of(*layers) if loop is keeps_statistics else kit_of()
    said = "test_gradient_accumulation.py:[0-9]+: .*" + re.escape(REFUSED[loop])
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        loop(kit)


def test_what_no_step_has_followed_is_said_at_the_end(tmp_path, caplog):
    kit = kit_of()
    with kit.session(tmp_path):
        carries_over(kit)
    (said,) = (line for line in caplog.messages if "are dropped" in line)
    assert said.startswith("The gradients of the last 2 batches are dropped")


def test_a_script_that_only_compiles_has_a_program_for_it(tmp_path):
    kit = kit_of()
    with pytest.raises(SystemExit) as ended, kit.session(tmp_path, compile_only=True):
        accumulate(kit)
    assert not ended.value.code
    (plan,) = tmp_path.glob("tfcs_*/plan.json")
    assert '"accumulates": true' in plan.read_text()
    assert cbtorch.env().is_chief
