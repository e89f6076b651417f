"""Steps that start on tokens and are then recorded: PyTorch's values and gradients."""

import json

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


def with_another_loss(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        out = kit.model(x)
        loss = kit.criterion(out, y)
        if step % 5 == 4:
            loss = loss + 0.1 * out.square().mean()
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


class Unused(nn.Linear):
    """Network with an unused weight."""

    def __init__(self):
        super().__init__(6, 4)
        self.never = nn.Parameter(torch.ones(3))


def test_a_parameter_without_use_may_be_there(tmp_path):
    beside(with_another_loss, tmp_path, Unused())


def with_another_argument(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        scaled = x * (1.0 if step < 4 else 0.5)  # before the model's call
        loss = kit.criterion(kit.model(scaled), y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


def with_another_call(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        logits = kit.model(x)
        logits *= 2.0  # a write into a value, made again when the step is recorded after all
        if step == 4:
            logits = logits + kit.model(x.flip(0)).flip(0)
        loss = kit.criterion(logits, y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


def with_a_metric_of_the_batch(kit):
    losses, hits = [], 0
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        out, weight = kit.model(x), (y == 1).double().mean()  # lazy until the loss has it
        loss = kit.criterion(out, y) * (1 + weight if step == 4 else 1.0)
        loss.backward()
        kit.optimizer.step()
        hits += (out.argmax(1) == y).sum()
        losses.append(loss.detach())
    return [*losses, hits]


def with_term(term):
    """Return a loop with another term of the loss in step 5."""

    def loop(kit):
        losses = []
        for step, (x, y) in enumerate(kit.train):
            kit.optimizer.zero_grad()
            out = kit.model(x)
            loss = kit.criterion(out, y)
            if step == 4:
                loss = loss + term(out, loss)
            loss.backward()
            kit.optimizer.step()
            losses.append(loss.detach())
        return losses

    return loop


def under_no_grad(out, loss):
    with torch.no_grad():
        mean = out.mean()
    return out.square().mean() * mean


def written_and_detached(out, loss):
    target = out.clone().detach()
    target *= 2
    return (target * out).mean()


@pytest.mark.parametrize(
    "term",
    [
        under_no_grad,
        written_and_detached,
        lambda out, loss: out.square().mean() * out.detach().mean(),
        lambda out, loss: out.square().mean() * out.mean().detach(),
        lambda out, loss: loss / loss.detach(),
    ],
)
def test_what_is_detached_stays_so_in_a_step_recorded_after_all(tmp_path, term):
    beside(with_term(term), tmp_path)


class WithMean(nn.Linear):
    """Network that also returns the mean of its result."""

    def forward(self, x):
        out = super().forward(x)
        return out, out.mean()


def with_another_output(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        out, mean = kit.model(x)
        loss = kit.criterion(out, y)
        if step == 4:
            loss = loss + mean.square()
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


def detached_in_a_step(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        out = kit.model(x)
        scale = (out.detach() if step == 4 else out).exp()
        loss = kit.criterion(out * scale, y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


def without_gradients_in_a_step(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        with torch.set_grad_enabled(step != 4):
            mirrored = kit.model(x.flip(0))
        loss = kit.criterion(kit.model(x) + mirrored, y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


def test_gradients_of_an_output_that_step_1_did_not_use(tmp_path):
    beside(with_another_output, tmp_path, WithMean(6, 4))


@pytest.mark.parametrize("loop", [detached_in_a_step, without_gradients_in_a_step])
def test_gradients_may_be_cut_in_some_steps(tmp_path, loop):
    beside(loop, tmp_path)


def written_before_the_loss(kit):
    losses = []
    for x, y in kit.train:
        kit.optimizer.zero_grad()
        shifted = x * 2  # without gradients until the write
        shifted += kit.model(x).mean()
        loss = kit.criterion(shifted, y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


def test_a_value_has_gradients_from_a_write_on(tmp_path):
    beside(written_before_the_loss, tmp_path)
    performance = json.loads((tmp_path / "performance/performance.json").read_text())
    assert not performance["recorded_steps"]  # tokens from step 4 on


def with_a_penalty_of_weights(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x), y)
        if step == 4:
            loss = loss + kit.model[0].weight.square().sum()
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


def test_weights_in_the_loss_of_some_steps(tmp_path):
    beside(with_a_penalty_of_weights, tmp_path / "recorded", settings={"fast": False})
    kit = Kit()
    said = r"test_traced_tokens.py:\d+: the loss takes weights outside of forward, and did not"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path / "fast"):
        with_a_penalty_of_weights(kit)


@pytest.mark.parametrize(
    "loop",
    [with_another_loss, with_another_argument, with_another_call, with_a_metric_of_the_batch],
)
def test_the_loop_may_compute_something_else_in_later_steps(tmp_path, loop):
    beside(loop, tmp_path)


def switches_after_the_batch(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        kit.model[1].p = 0.0 if step < 4 else 0.25
        kit.model[0].requires_grad_(step != 5)
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x) / (1 + kit.model[1].p), y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


class Scale(nn.Module):
    p = 0.0

    def forward(self, x):
        return x * (1 - self.p)


def test_what_forward_reads_may_change_after_the_batch_was_taken(tmp_path):
    layers = nn.Linear(6, 9), Scale(), nn.Linear(9, 4)
    beside(switches_after_the_batch, tmp_path, *layers)


def test_a_step_that_has_run_is_not_recorded_again(tmp_path):
    kit = Kit()
    said = r"test_traced_tokens.py:\d+: backward\(\) must be called on the loss as step 1 computed"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for step, (x, y) in enumerate(kit.train):
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y)
            if step == 4 and loss.item() > 0:
                loss = loss * 3
            loss.backward()
            kit.optimizer.step()


def test_a_tensor_that_the_loop_has_written_since_is_not_read_again(tmp_path):
    kit, weight = Kit(), torch.ones(4, dtype=torch.float64)
    said = r"backward\(\) must be called on the loss as step 1 computed it"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for step, (x, y) in enumerate(kit.train):
            weight.fill_(1.0)
            kit.optimizer.zero_grad()
            logits = kit.model(x) * weight
            if step == 4:
                weight.fill_(2.0)  # after its use
                logits = logits * 3
            kit.criterion(logits, y).backward()
            kit.optimizer.step()


def trained_after_a_pass(kit, is_grad_enabled, calls):
    """Loop that measures the loss in training mode before, between and after its passes."""
    losses = []

    def loss_of(x, y):
        loss = kit.criterion(kit.model(x), y)
        return loss if calls == 1 else loss + 0.3 * kit.model(-x).square().mean()

    for _ in range(2):
        with torch.set_grad_enabled(is_grad_enabled):
            losses += [loss_of(x, y).detach() for x, y in kit.train]
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            loss = loss_of(x, y)
            loss.backward()
            kit.optimizer.step()
            losses.append(loss.detach())
    with torch.set_grad_enabled(is_grad_enabled):
        losses += [loss_of(x, y).detach() for x, y in kit.train]
    return losses


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("is_grad_enabled", [False, True])
def test_a_training_after_a_pass_without_updates_has_all_gradients(
    tmp_path, is_grad_enabled, calls
):
    beside(lambda kit: trained_after_a_pass(kit, is_grad_enabled, calls), tmp_path)
