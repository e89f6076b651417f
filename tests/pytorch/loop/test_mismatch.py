"""Calls that a loop makes otherwise in later steps, tensors that it writes, modes that it sets."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


def steps(kit, loss_of, passes=1):
    """Training with another loss: of the model, the batch and the step's number."""
    losses = []
    for _ in range(passes):
        for step, (x, y) in enumerate(kit.train):
            kit.optimizer.zero_grad()
            loss = loss_of(kit.model(x), y, step)
            loss.backward()
            kit.optimizer.step()
            losses.append(loss.detach())
    return losses


def penalties(kit):
    """What the loop computes of weights is computed anew in each step."""
    weights = list(kit.model.parameters())

    def loss_of(out, y, _):
        absolute = sum(p.abs().sum() for p in weights)
        squares = sum(torch.norm(p) ** 2 for p in weights)
        return kit.criterion(out, y) + 1e-2 * absolute + squares * 1e-3

    return steps(kit, loss_of, passes=2)


def modes_set_behind_the_batch(kit):
    """As where each step begins with model.train() and some end with a validation."""
    found = []
    for step, (x, y) in enumerate(kit.train):
        kit.model.train()
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x), y)
        loss.backward()
        kit.optimizer.step()
        found.append(loss.item())
        if step % 3 != 1:
            kit.model.eval()
            with torch.no_grad():
                found += [kit.criterion(kit.model(a), b).item() for a, b in kit.val]
    return found


def written_before_they_are_read(kit):
    factor, rows, kept = torch.ones((), dtype=torch.float64), [0], []
    for loss in kit.train_once():
        kept.append((loss * factor, torch.stack([loss, loss])[rows]))
        factor += 1
        rows[0] = 1 - rows[0]
    return [number for pair in kept for number in pair]


class Norm(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 4))


def test_penalties_of_the_loop_are_of_each_steps_weights(tmp_path):
    beside(penalties, tmp_path)


def test_modes_may_be_set_behind_the_batch_in_each_step(tmp_path):
    beside(modes_set_behind_the_batch, tmp_path, Norm())


def test_values_that_wait_are_of_tensors_as_they_were(tmp_path):
    beside(written_before_they_are_read, tmp_path)


def another_keyword(kit):
    limits = [{"min": 0.1}] * 4 + [{"max": 0.1}] * 4
    steps(kit, lambda out, y, n: kit.criterion(out.clamp(**limits[n]), y))


def another_type(kit):
    steps(kit, lambda out, y, n: kit.criterion(out * (1, True)[n // 4], y))


def another_number(kit):
    steps(kit, lambda out, y, n: kit.criterion(out, y) * (1.0 if n < 4 else 2.0))


def a_written_mask(kit):
    mask = torch.ones(4, dtype=torch.float64)

    def loss_of(out, y, step):
        if step == 4:
            mask[0] = 0
        return kit.criterion(out * mask, y)

    steps(kit, loss_of)


class Masked(nn.Linear):
    def __init__(self):
        super().__init__(6, 4)
        self.mask = torch.ones(4, dtype=torch.float64)

    def forward(self, x):
        return super().forward(x) * self.mask


def a_mask_of_forward(kit):
    for step, (x, y) in enumerate(kit.train):
        kit.model[0].mask[1] = 1.0 if step < 4 else 0.5
        kit.optimizer.zero_grad()
        kit.criterion(kit.model(x), y).backward()
        kit.optimizer.step()


def another_mode(kit):
    for step, (x, y) in enumerate(kit.train):
        kit.model.train(step < 4)
        kit.optimizer.zero_grad()
        kit.criterion(kit.model(x), y).backward()
        kit.optimizer.step()


REFUSED = {
    another_keyword: r"clamp in .*test_mismatch.py:[0-9]+ is not called as it was",
    another_type: "mul in .* is not called as it was",
    another_number: "mul in .* is not called as it was",
    a_written_mask: "mul in .* is not called as it was",
    a_mask_of_forward: r"test_mismatch.py:[0-9]+: a tensor that this line uses",
    another_mode: r"test_mismatch.py:[0-9]+: train\(\) or eval\(\) of modules",
}
LAYERS = {a_mask_of_forward: Masked, another_mode: Norm}


@pytest.mark.parametrize("loop", REFUSED, ids=lambda loop: loop.__name__)
def test_what_the_program_has_not_is_refused_with_the_line(tmp_path, loop):
    kit = Kit(*([LAYERS[loop]()] if loop in LAYERS else []))
    with pytest.raises(UsageError, match=REFUSED[loop]), kit.session(tmp_path):
        loop(kit)
