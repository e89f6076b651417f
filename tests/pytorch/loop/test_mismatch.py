"""Calls of later steps that differ from step 1: PyTorch's results, or a named difference."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


def steps(kit, loss_of, passes=1):
    """Train with a loss computed from the model, the batch and the step's number."""
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
    """Penalty of weights, which is computed again in each step."""
    weights = list(kit.model.parameters())

    def loss_of(out, y, _):
        absolute = sum(p.abs().sum() for p in weights)
        squares = sum(torch.norm(p) ** 2 for p in weights)
        return kit.criterion(out, y) + 1e-2 * absolute + squares * 1e-3

    return steps(kit, loss_of, passes=2)


def modes_set_behind_the_batch(kit):
    """Modes set after taking the batch, as by loops that start each step with model.train()."""
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


def weighted_by_the_loop(kit, add):
    """Loss terms weighted by learned weights, and by numbers that change after a pass."""
    last, found = kit.model[2].bias, []
    for numbers in ((1.0, 1.0), (1.5, 1.0), (1.5, 0.5)):
        found += steps(kit, lambda out, y, _, n=numbers: add(kit, last, out, y, *n))
    return found


def sum_of_terms(kit, weights, out, y, one, two):
    terms = kit.criterion(out, y), out.square().mean()
    numbers = enumerate((one, two))
    return sum(n * torch.exp(-weights[i]) * terms[i] + 0.5 * weights[i] for i, n in numbers)


def terms_added_in_place(kit, weights, out, y, one, two):
    loss = torch.exp(-weights[0]) * kit.criterion(out, y)
    loss += one * (torch.exp(-weights[1]) * out.square().mean())
    loss += two * weights.square().sum()
    return loss


@pytest.mark.parametrize("add", [sum_of_terms, terms_added_in_place])
def test_numbers_beside_learned_weights_of_the_loss_may_change(tmp_path, add):
    modes = torch.overrides._len_torch_function_stack()
    beside(lambda kit: weighted_by_the_loop(kit, add), tmp_path)
    assert torch.overrides._len_torch_function_stack() == modes


def test_weights_are_read_behind_a_loop_that_leaves_before_its_penalty(tmp_path):
    def loop(kit):
        losses, weight = [], kit.model[0].weight
        for _ in range(2):
            for step, (x, y) in enumerate(kit.train):
                loss = kit.criterion(kit.model(x), y)
                if len(losses) > 6 and step == 3:
                    break
                losses.append(kit.update(loss + 0.1 * weight.pow(2).sum()))
        norm = weight.pow(2).sum().item()
        x, y = next(iter(kit.train))  # this pass is left before the model is called
        loss = kit.criterion(kit.model(x), y) + 0.1 * weight.pow(2).sum()
        return [*losses, norm, kit.update(loss)]

    beside(loop, tmp_path)


def test_modes_may_be_set_behind_the_batch_in_each_step(tmp_path):
    beside(modes_set_behind_the_batch, tmp_path, Norm())


def test_values_that_wait_are_of_tensors_as_they_were(tmp_path):
    beside(written_before_they_are_read, tmp_path)


def another_keyword(kit):
    limits = [{"min": 0.1}] * 4 + [{"max": 0.1}] * 4
    return steps(kit, lambda out, y, n: kit.criterion(out.clamp(**limits[n]), y))


def another_type(kit):
    return steps(kit, lambda out, y, n: kit.criterion(out * (1, True)[n // 4], y))


def another_number(kit):
    return steps(kit, lambda out, y, n: kit.criterion(out, y) * (1.0 if n < 4 else 2.0))


def labels_of_the_batch_before(kit):
    labels = []

    def loss_of(out, y, step):
        labels.append(y)
        return kit.criterion(out, labels[-1 if step < 4 else -2])

    return steps(kit, loss_of)


def a_written_mask(kit):
    mask = torch.ones(4, dtype=torch.float64)

    def loss_of(out, y, step):
        if step == 4:
            mask[0] = 0
        return kit.criterion(out * mask, y)

    return steps(kit, loss_of)


def a_term_added_in_place(kit):
    def loss_of(out, y, step):
        if step > 4:
            out[:, 0] = 0
        loss = kit.criterion(out, y)
        if step > 3:
            loss += out.square().mean()
        return loss

    return steps(kit, loss_of)


class Masked(nn.Linear):
    def __init__(self):
        super().__init__(6, 4)
        self.mask = torch.ones(4, dtype=torch.float64)

    def forward(self, x):
        return super().forward(x) * self.mask


def a_mask_of_forward(kit):
    found = []
    for step, (x, y) in enumerate(kit.train):
        kit.model[0].mask[1] = 1.0 if step < 4 else 0.5
        kit.optimizer.zero_grad()
        found.append(kit.criterion(kit.model(x), y))
        found[-1].backward()
        kit.optimizer.step()
    return [loss.detach() for loss in found]


def another_mode(kit):
    for step, (x, y) in enumerate(kit.train):
        kit.model.train(step < 4)
        kit.optimizer.zero_grad()
        kit.criterion(kit.model(x), y).backward()
        kit.optimizer.step()


@pytest.mark.parametrize(
    "loop",
    [
        another_keyword,
        another_type,
        another_number,
        labels_of_the_batch_before,
        a_term_added_in_place,
        a_written_mask,
        a_mask_of_forward,
    ],
    ids=lambda f: f.__name__,
)
def test_a_step_that_is_not_as_step_1_is_recorded(tmp_path, loop):
    beside(loop, tmp_path, *([Masked()] if loop is a_mask_of_forward else []))


def test_a_norm_in_another_mode_is_refused_with_its_line(tmp_path):
    said, kit = "are updated in some training steps and not in others", Kit(Norm())
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        another_mode(kit)


def prefetched(kit, when):
    batches = iter(kit.train)
    x, y = next(batches)
    for step in range(5):
        loss = kit.criterion(kit.model(x), y)
        if when(step):
            x, y = next(batches)
        loss.backward()
        kit.optimizer.step()
        kit.optimizer.zero_grad()
        if not when(step):
            x, y = next(batches)


def double_buffered(kit):
    found, (x, y) = [], next(batches := iter(kit.train))
    for other in batches:
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x), y)
        loss.backward()
        kit.optimizer.step()
        found.append(loss.detach())
        x, y = other
    return found


def evaluated_before_use(kit):
    x, _ = next(iter(kit.train))
    kit.model.eval()
    with torch.no_grad():
        found = [kit.model(x).sum().item() for x, _ in kit.val]
    kit.model.train()
    return [*found, kit.model(x).sum().detach()]


def comparing(kit):
    last, found = 0.0, []
    for x, y in kit.train:
        out = kit.model(x)
        loss = kit.criterion(out, y) + (out - last).square().mean()
        loss.backward()
        found.append(loss.detach())
        kit.optimizer.step()
        kit.optimizer.zero_grad()
        last = out.detach()
    return found


def shifted(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        loss = kit.criterion(kit.model(x + step // 3), y)
        loss.backward()
        kit.optimizer.step()
        kit.optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def flipped(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        loss = kit.criterion(kit.model(x if step < 3 else x.flip(0)), y)
        loss.backward()
        kit.optimizer.step()
        kit.optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def twice(kit):
    for x, y in kit.train:
        kit.criterion(kit.model(x), y).backward()
        kit.optimizer.step()
        kit.optimizer.zero_grad()
        kit.model(x).sum().item()


class Carrying(nn.Module):
    """Recurrent network with a state and an option as arguments."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 4), nn.Linear(4, 4)

    def forward(self, x, state, scale=1.0):
        state = torch.tanh(self.inner(x) + self.outer(state)) * scale
        return state, state


def carrying(kit):
    state, found = torch.zeros(8, 4, dtype=torch.float64), []
    for x, _ in kit.train:
        _, state = kit.model(x, state.detach())
        found.append(state.sum().detach())
    return found


def growing(kit):
    state = torch.zeros(8, 4, dtype=torch.float64)
    losses = []
    for step, (x, y) in enumerate(kit.train):
        loss = kit.criterion(kit.model(x, state, 1.0 + step // 3)[0], y)
        loss.backward()
        kit.optimizer.step()
        kit.optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


LATE = r"backward\(\) is called on a value of a finished step"


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (lambda kit: prefetched(kit, lambda step: True), LATE),
        (lambda kit: prefetched(kit, lambda step: step == 4), LATE),
        (twice, "the model is called more often than in step 1, or after optimizer.step"),
    ],
)
def test_a_loop_that_is_refused_is_told_why(tmp_path, loop, said):
    kit = Kit()
    with (
        pytest.raises(UsageError, match=rf"(torch_loops|test_mismatch).py:\d+: .*{said}"),
        kit.session(tmp_path),
    ):
        loop(kit)


class CarryingKit(Kit):
    def __init__(self):
        super().__init__(Carrying())
        self.model.forward = lambda *given: self.model[0](*given)


@pytest.mark.parametrize(
    ("loop", "kit"),
    [
        (shifted, Kit),
        (flipped, Kit),
        (double_buffered, Kit),
        (evaluated_before_use, Kit),
        (comparing, Kit),
        (growing, CarryingKit),
        (carrying, CarryingKit),
    ],
)
def test_a_step_with_another_input_or_number_is_recorded(tmp_path, loop, kit):
    beside(loop, tmp_path, kit=kit)


def test_a_loss_of_an_earlier_steps_state_is_refused(tmp_path):
    kit, state = Kit(), torch.zeros(())
    said = r"py:\d+: backward\(\) is called on a value without a gradient.*call .detach\(\)"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for x, y in kit.train:
            out = kit.model(x) + state
            state = out.mean()
            kit.update(kit.criterion(out, y))
