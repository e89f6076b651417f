"""Gradients edited in other ways than in the first steps, or by values of their steps."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import optim  # noqa: E402
from torch.nn.utils import clip_grad_norm_, clip_grad_value_  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


def clip_from_the_second_pass(kit):
    clip = [None, lambda _: clip_grad_norm_(kit.model.parameters(), 0.3)]
    return [loss for n in (0, 1, 0, 1) for loss in kit.train_once(clip[n] or (lambda _: None))]


def clip_by_another_norm(kit):
    losses = []
    for norm in (0.3, 0.2, 0.2):
        losses += kit.train_once(lambda _, c=norm: clip_grad_norm_(kit.model.parameters(), c))
    return losses


def clip_the_data(kit):
    def edit(step):
        for gradient in kit.gradients:
            gradient.data.clamp_(-0.03 if step < 4 else -0.01, 0.03)

    return kit.train_once(edit)


def clip_by_a_value(kit):
    return kit.train_once(
        lambda step: clip_grad_value_(kit.model.parameters(), 0.05 / (1 + step // 4))
    )


def take_one_away(kit):
    def edit(step):
        if step >= 4:
            kit.model[0].weight.grad = None

    return kit.train_once(edit) + kit.train_once()


def clear_between(kit):
    def edit(step):
        if step == 4:
            kit.optimizer.zero_grad()

    return kit.train_once(edit)


def zero_some(kit):
    def edit(step):
        if step >= 4:
            kit.model[0].weight.grad.zero_()
            kit.gradients[1].mul_(0.5)

    return kit.train_once(edit)


def put_others_in_their_place(kit):
    def edit(step):
        for parameter in kit.model.parameters():
            parameter.grad = parameter.grad * (0.5 if step < 4 else 0.25)

    return kit.train_once(edit)


def keep_the_norm(kit):
    """Keep a step's norm while the next step computes its own."""
    norms = []

    def edit(step):
        norms.append(kit.gradients[0].norm())
        if step >= 4:
            kit.gradients[0].div_(norms[-1])

    return kit.train_once(edit)


def masks(kit):
    mask = torch.ones(9, 6, dtype=torch.float64)

    def edit(step):
        if step == 4:
            mask[:4] = 0
        kit.model[0].weight.grad.mul_(mask)

    return kit.train_once(edit)


def decay_by_hand(kit):
    def edit(step):
        for parameter in kit.model.parameters():
            parameter.grad.add_(parameter.data, alpha=0.1 if step < 4 else 0.2)

    return kit.train_once(edit)


LOOPS = (
    *(clip_from_the_second_pass, clip_by_another_norm, clip_the_data, clip_by_a_value),
    *(take_one_away, clear_between, zero_some, put_others_in_their_place, keep_the_norm),
    *(masks, decay_by_hand),
)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_edits_that_change_after_the_first_steps_are_pytorchs(tmp_path, loop):
    beside(loop, tmp_path)


def by_hand(kit):
    return clears(kit, lambda: [setattr(p, "grad", None) for p in kit.model.parameters()])


def clears(kit, clear, before=True):
    losses = []
    for _ in range(2):
        for x, y in kit.train:
            if before:
                clear()
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            kit.optimizer.step()
            if not before:
                clear()
            losses.append(loss.item())
    return losses


CLEARS = {
    "none by hand": by_hand,
    "the model": lambda kit: clears(kit, kit.model.zero_grad),
    "the model, zeros": lambda kit: clears(kit, lambda: kit.model.zero_grad(set_to_none=False)),
    "zeros": lambda kit: clears(kit, lambda: kit.optimizer.zero_grad(set_to_none=False)),
    "after the step": lambda kit: clears(kit, kit.optimizer.zero_grad, before=False),
}


@pytest.mark.parametrize("loop", CLEARS.values(), ids=CLEARS.keys())
def test_gradients_are_cleared_in_any_way(tmp_path, loop):
    beside(loop, tmp_path)


@pytest.mark.parametrize(
    ("zero", "step"),
    [(False, 1), (lambda step: step != 4, 4), (lambda step: step < 2, 2)],
    ids=["never", "once not", "from the third on"],
)
def test_gradients_of_the_step_before_are_refused(tmp_path, zero, step):
    kit, seen = Kit(), []
    said = r"torch_loops.py:[0-9]+: 0.weight still has .* call optimizer.zero_grad\(\)"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once(seen.append, zero)
    assert len(seen) == step


def test_a_parameter_that_the_optimizer_has_not_may_keep_its_gradient(tmp_path):
    def loop(kit):
        for parameter in kit.model[0].parameters():
            parameter.grad = None
        return kit.train_once()

    beside(loop, tmp_path, optimizer=lambda p: optim.SGD(list(p)[2:], 0.1))


def an_earlier_steps(kit):
    kept = []

    def edit(step):
        kept.append(kit.gradients[0] * 1)
        if step == 4:
            kit.gradients[0].add_(kept[-2])

    kit.train_once(edit)


def another_tensor(kit):
    def edit(step):
        if step == 4:
            kit.model[0].weight.grad = torch.zeros(9, 6, dtype=torch.float64)

    kit.train_once(edit)


def read_before(kit):
    def edit(step):
        if step == 4:
            kit.gradients[0].zero_()

    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x), y)
        loss.backward()
        loss.item()
        edit(step)
        kit.optimizer.step()


def writes_after_the_step(kit):
    for step, _ in enumerate(kit.train_once(lambda step: step)):
        kit.gradients[0].mul_(step)


REFUSED = {
    an_earlier_steps: "with a value of an earlier step's gradients",
    another_tensor: "gradient of 0.weight must come from this step's backward",
    read_before: "edited differently than in earlier steps, and this step has run",
    writes_after_the_step: r"mul_ changes the gradient of 0.weight outside of backward\(\)",
}


@pytest.mark.parametrize("loop", REFUSED, ids=lambda loop: loop.__name__)
def test_an_edit_that_no_program_has_is_refused(tmp_path, loop):
    kit = Kit()
    with pytest.raises(UsageError, match=REFUSED[loop]), kit.session(tmp_path):
        loop(kit)


def test_numbers_that_change_in_each_step_are_refused_when_there_are_many(tmp_path):
    kit = Kit()
    said = r"test_edited_variants.py:[0-9]+: the loop edits gradients in more than 8 ways"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for part in range(3):
            kit.train_once(lambda step, p=part: kit.gradients[0].mul_(1 + max(6 * p + step - 3, 0)))


def edited(kit, edit):
    """Two passes that call `edit` with the parameters, loss and output of each step."""
    losses = []
    for _ in range(2):
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            out = kit.model(x)
            loss = kit.criterion(out, y)
            loss.backward()
            edit(list(kit.model.parameters()), loss.detach(), out.detach())
            kit.optimizer.step()
            losses.append(loss.detach())
    return losses


def by_the_loss(parameters, loss, out):
    for parameter in parameters:
        parameter.grad.mul_(loss)


def before_the_gradient(parameters, loss, out):
    for parameter in parameters:
        parameter.grad = loss * parameter.grad


def by_an_output(parameters, loss, out):
    parameters[-1].grad.add_(out[0], alpha=0.1)


@pytest.mark.parametrize("edit", [by_the_loss, before_the_gradient], ids=lambda e: e.__name__)
def test_gradients_edited_by_a_value_of_the_step_are_pytorchs(tmp_path, edit):
    beside(lambda kit: edited(kit, edit), tmp_path)


def test_edits_by_the_loss_may_begin_in_a_later_step(tmp_path):
    """Compiled to another program with the same forward and backward pass."""
    steps = []

    def edit(parameters, loss, out):
        steps.append(loss)
        if len(steps) % 12 > 6 or len(steps) % 12 == 0:
            by_the_loss(parameters, loss, out)

    beside(lambda kit: edited(kit, edit), tmp_path)


def by_the_last_loss():
    last = []

    def edit(parameters, loss, out):
        if len(last) > 4:
            parameters[0].grad.mul_(last[-1])
        last.append(loss)

    return edit


def by_what_is_computed(parameters, loss, out):
    parameters[0].grad.mul_(1 / loss)


@pytest.mark.parametrize("edit", [by_the_last_loss(), by_what_is_computed, by_an_output])
def test_by_other_values_they_are_not_edited(tmp_path, edit):
    kit = Kit()
    said = r"test_edited_variants.py:\d+: gradients are edited with a value that the loop comp"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        edited(kit, edit)


def another_optimizer(kit):
    """Optimizer that updates on the host after the Session's, with the same gradients."""
    other = optim.SGD(kit.model[2].parameters(), 0.01)
    losses = []
    for x, y in kit.train:
        losses.append(kit.update(kit.criterion(kit.model(x), y)))
        other.step()
    return losses


def rows_by_gradients(kit):
    """Mask rows with small scores, as AdaLoRA does."""
    weight, losses = kit.model[0].weight, []
    for x, y in kit.train:
        losses.append(kit.update(kit.criterion(kit.model(x), y)))
        with torch.no_grad():
            score = (weight * weight.grad).abs().sum(1, keepdim=True)
            weight.masked_fill_(score <= score.median(), 0.0)
    return losses


@pytest.mark.parametrize("loop", [another_optimizer, rows_by_gradients])
def test_weights_are_written_by_values_of_gradients_after_the_step(tmp_path, loop):
    beside(loop, tmp_path)


def clipped_by_rows(kit):
    """Adaptive gradient clipping by the norms of a weight's rows."""

    def edit(step):
        for p in kit.model.parameters():
            dims = tuple(range(1, p.dim()))
            norm, most = (x.norm(2, dim=dims, keepdim=True) for x in (p.grad.detach(), p.detach()))
            most = most.clamp_(min=1e-3).mul_(0.01)
            clipped = p.grad.detach() * (most / norm.clamp(min=1e-6))
            p.grad.detach().copy_(torch.where(norm < most, p.grad.detach(), clipped))

    return [loss for _ in range(2) for loss in kit.train_once(edit)]


def scaled_by_norms(kit):
    def edit(step):
        with torch.no_grad():
            for p in kit.model.parameters():
                p.grad.mul_((0.01 * p.norm() / p.grad.norm().clamp(min=1e-6)).clamp(max=1.0))

    return [loss for _ in range(2) for loss in kit.train_once(edit)]


@pytest.mark.parametrize("loop", [clipped_by_rows, scaled_by_norms])
def test_gradients_are_edited_by_functions_of_weights(tmp_path, loop, caplog):
    caplog.set_level("INFO", "csrun")
    beside(loop, tmp_path)
    said = "gradients are edited with a function of weights: each step is recorded"
    assert sum(said in record.message for record in caplog.records) == 1
