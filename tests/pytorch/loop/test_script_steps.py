"""Loops without a loader of csrun: batches are passed with each step."""

import io
import json
from itertools import accumulate

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.script_loops import Given, GivenKit, Recurrent, ScriptKit, each_step, name_of, seeded  # noqa: E402
from support.torch_loops import beside  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402


@seeded
def drawn_batches(kit):
    """Batch of randomly indexed rows, as in nanoGPT."""
    x, y = kit.train.dataset.tensors
    losses = []
    for _ in range(8):
        chosen = torch.randint(len(x), (6,))
        losses.append(kit.step(x[chosen], y[chosen]).item())
    return losses


@seeded
def whole_data(kit):
    """All of the data in each step, on the fast path from step 4 on; it changes once."""
    x, y = kit.train.dataset.tensors
    losses = []
    for step in range(12):
        if step == 9:
            x = x * 2
        losses.append(kit.step(x, y).detach())
    return losses


@seeded
def accumulated(kit):
    x, y = kit.train.dataset.tensors
    losses = []
    for step in range(6):
        kit.optimizer.zero_grad()
        for part in range(3):
            at = slice(4 * part + step, 4 * part + step + 4)
            loss = kit.criterion(kit.model(x[at]), y[at]) / 3
            loss.backward()
            losses.append(loss.detach())
        kit.optimizer.step()
    return losses


@seeded
def plain_loader(kit):
    """DataLoader not passed through cbtorch.dataloader."""
    return [loss for _ in range(2) for loss in kit.train_once()]


@seeded
def evaluated(kit):
    x, y = kit.train.dataset.tensors
    losses = []
    for step in range(6):
        losses.append(kit.step(x[step : step + 8], y[step : step + 8]).item())
        kit.model.eval()
        with torch.no_grad():
            losses.append(kit.criterion(kit.model(x), y).item())
        kit.model.train()
    return losses


@seeded
def saved(kit):
    """Loop that saves the state after an evaluation, whose last step is not ended by a call."""
    x, y = kit.train.dataset.tensors
    found = []
    for step in range(4):
        found.append(kit.step(x[step : step + 8], y[step : step + 8]).item())
        kit.model.eval()
        found.append(kit.criterion(kit.model(x), y).item())
        kept = io.BytesIO()
        torch.save(kit.model.state_dict(), kept)
        kept.seek(0)
        found += [weights.sum().item() for weights in torch.load(kept).values()]
        kit.model.train()
    return found


@seeded
def evaluated_before_reads(kit):
    """As pygcn and pyGAT: values of the training step are read in a step of an evaluation."""
    x, y = kit.train.dataset.tensors
    found = []
    for _ in range(6):
        kit.model.train()
        kit.optimizer.zero_grad()
        out = kit.model(x)
        loss, hits = kit.criterion(out, y), out.argmax(1).eq(y).double().mean()
        loss.backward()
        kit.optimizer.step()
        kit.model.eval()
        evaluated = kit.criterion(kit.model(x), y)
        found += [loss.data.item(), hits.data.item(), evaluated.data.item()]
    return found


OWN = (
    drawn_batches, whole_data, accumulated, plain_loader, evaluated, saved, evaluated_before_reads,
)  # fmt: skip


@pytest.mark.parametrize("loop", OWN, ids=name_of)
@pytest.mark.parametrize("fast", [True, False])
def test_no_loader_makes_the_batches(tmp_path, loop, fast):
    beside(loop, tmp_path, kit=ScriptKit, settings={"fast": fast})


def test_steps_on_the_same_tensors_are_fast(tmp_path):
    kit = ScriptKit()
    with kit.session(tmp_path):
        whole_data(kit)
    found = json.loads((tmp_path / "performance" / "performance.json").read_text())
    assert not found["recorded_steps"]


def test_steps_on_a_loaders_batches_and_on_others_take_turns(tmp_path):
    @seeded
    def loop(kit):
        x, y = kit.train.dataset.tensors
        losses = []
        for step in range(3):
            losses += kit.train_once()
            for at in range(2):
                losses.append(
                    kit.update(
                        kit.criterion(kit.model(x[at : at + 9 - step]), y[at : at + 9 - step])
                    ).item()
                )
        return losses

    beside(loop, tmp_path)


def late_constant(kit):
    return each_step(
        kit,
        lambda x, y, step: (
            kit.criterion(kit.model(x, torch.full((6,), 1 + 0.1 * (step > 3)).double()), y),
        ),
    )


def own_batches(kit):
    x, y = kit.train.dataset.tensors
    return [kit.step(x[at : at + 7], y[at : at + 7]).item() for at in range(0, 35, 7)]


@pytest.mark.parametrize(
    ("loop", "make"), [(late_constant, GivenKit), (own_batches, ScriptKit)], ids=["late", "own"]
)
def test_a_session_an_epoch_trains_as_one(tmp_path, loop, make):
    layers = [Given()] if make is GivenKit else []
    ours, theirs = make(*layers), make(*layers)
    session = ours.session(tmp_path)
    found = []
    for _ in range(3):
        with session:
            found += loop(ours)
        session = cbtorch.Session(ours.model, ours.optimizer, ours.criterion, mode="train")
    expected = [loss for _ in range(3) for loss in loop(theirs)]
    assert found == pytest.approx(expected, rel=1e-6)


def test_a_label_out_of_range_is_refused_with_the_users_line(tmp_path):
    kit = ScriptKit()
    x, y = kit.train.dataset.tensors
    y = y.clone()
    y[12] = 9
    said = r"step 3: row 2: the tensor of .*\.py:\d+ must be in 0..3, got 9"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for at in range(0, 20, 5):
            kit.step(x[at : at + 5], y[at : at + 5])


class Stream(IterableDataset):
    """Samples without len(), with batches of several lengths and a text."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        sizes = (4, 7, 4, 7, 4, 7)
        starts = accumulate(sizes, initial=0)
        for start, size in zip(starts, sizes, strict=False):
            yield {"x": self.x[start : start + size], "y": self.y[start : start + size], "n": "a"}


@seeded
def streamed(kit):
    losses = []
    for _ in range(3):
        for batch in DataLoader(Stream(*kit.train.dataset.tensors), batch_size=None):
            losses.append(kit.step(batch["x"], batch["y"]).item())
    return losses


def test_a_plain_loader_may_be_of_any_kind(tmp_path):
    beside(streamed, tmp_path, kit=ScriptKit)
    found = json.loads((tmp_path / "performance" / "performance.json").read_text())
    assert not found["recorded_steps"], "each length has its own program"


@seeded
def read_before_the_loss(kit):
    """Hits printed before the step has all of its inputs."""
    x, y = kit.train.dataset.tensors
    found = []
    for at in range(0, 40, 5):
        inputs, labels = x[at : at + 5], y[at : at + 5]
        out = kit.model(inputs)
        found.append((out.argmax(1) == labels).sum().item())
        found.append(kit.update(kit.criterion(out, labels)).item())
    return found


def test_values_may_be_read_within_a_step(tmp_path):
    beside(read_before_the_loss, tmp_path, kit=ScriptKit)


def test_the_state_is_not_read_within_a_recorded_step(tmp_path):
    kit = ScriptKit()
    x, y = kit.train.dataset.tensors
    said = r"test_script_steps.py:\d+: the state of the model or optimizer is read between"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.step(x, y)
        kit.model(x)
        kit.model.state_dict()


def test_a_state_with_its_gradient_is_refused_with_the_reason(tmp_path):
    kit, state = ScriptKit(Recurrent()), torch.zeros(8, 5, dtype=torch.float64)
    kit.model = kit.model[0]
    x, y = kit.train.dataset.tensors
    said = (
        r"test_script_steps.py:\d+: a value of an earlier step .* with its gradient: call .detach"
    )
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for at in range(0, 40, 8):
            kit.optimizer.zero_grad()
            out, state = kit.model(x[at : at + 8], state)
            kit.criterion(out, y[at : at + 8]).backward()
            kit.optimizer.step()


class CalledInBackward(torch.autograd.Function):
    """As torchdiffeq's adjoint method: forward has no graph, and backward builds it."""

    @staticmethod
    def forward(ctx, x, model, weight):
        ctx.save_for_backward(x)
        ctx.model = model
        return model(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            (found,) = torch.autograd.grad(ctx.model(x), ctx.model[0].weight, gradient)
        return None, None, found


def test_a_step_does_not_begin_in_a_backward_pass(tmp_path):
    kit = ScriptKit()
    said = r"test_script_steps.py:\d+: the model is first called in a backward pass"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for x, y in kit.train:
            out = CalledInBackward.apply(x, kit.model, kit.model[0].weight)
            kit.criterion(out, y).backward()
