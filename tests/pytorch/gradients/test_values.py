"""Values of gradients that the loop reads, against plain PyTorch."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402

MOST = 0.3


def do_nothing(step):
    pass


def train(kit, inside=do_nothing, after=do_nothing, passes=2, zero=True, set_to_none=True):
    """Train, calling `inside` before and `after` after optimizer.step(); return the losses."""
    losses = []
    for _ in range(passes):
        for x, y in kit.train:
            if zero:
                kit.optimizer.zero_grad(set_to_none=set_to_none)
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            inside(len(losses))
            kit.optimizer.step()
            after(len(losses))
            losses.append(loss.detach())
    return losses


def batches(kit, passes=2):
    for _ in range(passes):
        yield from kit.train


def norms(kit):
    return [gradient.norm().item() for gradient in kit.gradients]


# What is read of gradients, in each step before optimizer.step() or after it.


def whole(kit):
    first, second, *_ = kit.gradients
    rows = [row.sum().item() for row in first]
    array = second.data.cpu().numpy()
    return [*first[0].tolist(), *array, *rows, first.T[0].sum().item()]


def unrecordable(kit):
    first = kit.gradients[0]
    counts = torch.histc(first, 5).tolist()
    return [*counts, first[first > 0].sum().item(), torch.quantile(first, 0.5).item()]


def total(kit):
    by_hand = sum(gradient.norm() ** 2 for gradient in kit.gradients) ** 0.5
    stacked = torch.stack([gradient.norm() for gradient in kit.gradients]).norm()
    flat = torch.cat([gradient.view(-1) for gradient in kit.gradients])
    return [by_hand.item(), float(stacked), float(f"{flat.norm():.9f}")]


def finite(kit):
    """Check for finite gradients, as in Pytorch-UNet's train.py."""
    found = []
    for parameter in kit.model.parameters():
        value = copy.deepcopy(parameter.grad) if parameter.grad is not None else None
        is_odd = (torch.isinf(parameter.grad) | torch.isnan(parameter.grad)).any()
        found.append(2.0 if is_odd else float(value.abs().max()))
    return found


@pytest.mark.parametrize("place", ["inside", "after"])
@pytest.mark.parametrize("read", [whole, unrecordable, total, finite], ids=lambda f: f.__name__)
def test_numbers_in_each_step(tmp_path, read, place):
    def loop(kit):
        found = []
        return [*train(kit, **{place: lambda step: found.extend(read(kit))}), *found]

    beside(loop, tmp_path)


# Loops that read them at other times, and edit them.


def some_steps(kit):
    found = []

    def read(step):
        if step % 5 == 1:
            found.extend(norms(kit))

    return [*train(kit, read, read), *found]


def from_a_later_step_on(kit):
    found = []

    def read(step):
        if step > 6:
            found.append(kit.gradients[step % 4].norm().item())

    return [*train(kit, read, read), *found]


def around_a_clip(kit):
    found = []

    def clip(step):
        found.extend(norms(kit))
        found.append(clip_grad_norm_(kit.model.parameters(), MOST).item())
        found.extend(norms(kit))
        found.append(get_total_norm(kit.gradients).item())

    return [*train(kit, clip, lambda step: found.extend(norms(kit))), *found]


def of_other_clips(kit):
    found = []

    def clip(step):
        first = kit.model[0].parameters()
        found.append(clip_grad_norm_(first, MOST, error_if_nonfinite=True).item())
        clip_grad_value_(kit.model.parameters(), 0.02)
        found.append(max(gradient.abs().max().item() for gradient in kit.gradients))

    return [*train(kit, clip), *found]


def between_edits(kit):
    found = []

    def edit(step):
        for gradient in kit.gradients:
            gradient *= 0.5
        found.extend(norms(kit))
        for parameter in kit.model.parameters():
            parameter.grad = parameter.grad + 0.01
        kit.gradients[0][1] = 0
        found.extend(norms(kit))

    return [*train(kit, edit, lambda step: found.extend(norms(kit))), *found]


def a_norm_that_is_written(kit):
    found = []

    def edit(step):
        norm = clip_grad_norm_(kit.model.parameters(), MOST)
        norm *= 2
        found.append(norm.item())
        found.append(norm.mul_(2).item())

    return [*train(kit, edit), *found]


def edits_by_what_is_read(kit):
    def edit(step):
        factor = 1 / (1 + kit.gradients[0].norm().item())
        for gradient in kit.gradients:
            gradient.mul_(factor)

    return train(kit, edit)


def own_momentum(kit):
    velocity = [torch.zeros_like(parameter) for parameter in kit.model.parameters()]

    def edit(step):
        for number, gradient in enumerate(kit.gradients):
            velocity[number] = 0.9 * velocity[number] + gradient
            gradient.copy_(velocity[number])

    return train(kit, edit)


def steps_by_what_is_read(kit):
    """Steps conditional on a gradient's value, of which none is skipped."""
    found = []
    for x, y in batches(kit):
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x), y)
        loss.backward()
        norm = torch.stack([gradient.norm() for gradient in kit.gradients]).norm()
        if torch.isfinite(norm):
            kit.optimizer.step()
        found.append(norm.item())
    return found


def held_since_the_step_before(kit, set_to_none=True):
    found, before, clones = [], [], []

    def read(step):
        nonlocal before, clones
        found.extend(gradient.sum().item() for gradient in before)
        now = [gradient.detach().clone() for gradient in kit.gradients]
        found.extend((a * b).sum().item() for a, b in zip(clones, now, strict=False))
        before, clones = kit.gradients, now

    return [*train(kit, after=read, set_to_none=set_to_none), *found]


def held_and_never_none(kit):
    return held_since_the_step_before(kit, set_to_none=False)


def cleared(kit):
    found = []

    def clear(step):
        found.append(kit.gradients[0].sum().item())
        kit.optimizer.zero_grad(set_to_none=step % 2 == 0)
        found.extend(-1.0 if p is None else p.sum().item() for p in kit.gradients)

    return [*train(kit, after=clear, zero=False), *found]


def frozen(kit):
    kit.model[0].weight.requires_grad_(False)
    found = []

    def read(step):
        found.extend(-1.0 if p is None else p.sum().item() for p in kit.gradients)

    return [*train(kit, read, read), *found]


def before_the_next_backward(kit):
    found = []
    for number, (x, y) in enumerate(batches(kit)):
        if number:
            found.extend(norms(kit))
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x), y)
        found.append(loss.item())
        loss.backward()
        kit.optimizer.step()
    return found


def in_evaluations(kit):
    found = []

    def read(step):
        found.extend(norms(kit))

    for _ in range(3):
        train(kit, after=read, passes=1)
        kit.model.eval()
        for x, y in kit.val:
            found += [kit.criterion(kit.model(x), y).item(), *norms(kit)]
        kit.model.train()
    return found


def in_tensors_of_the_loop(kit):
    sums = torch.zeros(4, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    mean = 0.0

    def inside(step):
        nonlocal mean
        sums[1].add_(kit.gradients[0].norm())
        mean = 0.9 * mean + 0.1 * kit.gradients[1].norm()

    def after(step):
        torch.add(sums[0], kit.gradients[3], out=sums[0])

    return [*train(kit, inside, after), *sums[0], sums[1], mean]


def accumulated(kit):
    """Gradients after the first of two batches that are accumulated."""
    found = []
    for number, (x, y) in enumerate(batches(kit)):
        (kit.criterion(kit.model(x), y) / 2).backward()
        if number % 2 == 0:
            found.extend(norms(kit))
        else:
            kit.optimizer.step()
            kit.optimizer.zero_grad()
    return found


def clones_of_an_accumulated_batch(kit):
    found, clones = [], []
    for number, (x, y) in enumerate(batches(kit)):
        loss = kit.criterion(kit.model(x), y) / 2
        loss.backward()
        if number % 2 == 0:
            clones = [gradient.clone() for gradient in kit.gradients]
            found.append(loss.item())
        else:
            found.extend(clone.sum().item() for clone in clones)
            kit.optimizer.step()
            kit.optimizer.zero_grad()
    return found


LOOPS = (
    *(some_steps, from_a_later_step_on, around_a_clip, of_other_clips, between_edits),
    *(a_norm_that_is_written, edits_by_what_is_read, own_momentum, steps_by_what_is_read),
    *(held_since_the_step_before, held_and_never_none, cleared, frozen, before_the_next_backward),
    *(in_evaluations, in_tensors_of_the_loop, accumulated),
    clones_of_an_accumulated_batch,
)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_numbers_are_pytorchs(tmp_path, loop):
    beside(loop, tmp_path)


@pytest.mark.parametrize("loop", [around_a_clip, between_edits], ids=lambda loop: loop.__name__)
def test_of_steps_that_are_all_recorded(tmp_path, loop):
    beside(loop, tmp_path, settings={"fast": False})


def test_of_micro_batches(tmp_path):
    beside(around_a_clip, tmp_path, settings={"micro_batch_size": 4})


def test_a_resumed_loop_has_what_it_has_read(tmp_path):
    def loop(kit, passes):
        found = []

        def read(step):
            found.extend([*norms(kit), kit.gradients[0][0, 0].item()])

        train(kit, read, read, passes=passes)
        return found

    found = []
    for passes in (2, 3):
        kit = Kit()
        with kit.session(tmp_path):
            found.append(loop(kit, passes))
    assert found[1] == pytest.approx(loop(Kit(), 3), rel=1e-6)
    assert found[1][: len(found[0])] == found[0]


# What is refused, beside the table of docs/pytorch.md.


def skips(kit):
    for number, (x, y) in enumerate(batches(kit)):
        kit.optimizer.zero_grad()
        kit.criterion(kit.model(x), y).backward()
        norms(kit)
        if number != 7:
            kit.optimizer.step()


def edits_afterwards(kit):
    def edit(step):
        if step > 5 and kit.gradients[0].norm() > 0:
            kit.gradients[0].mul_(0.5)

    train(kit, edit)


def changes_lr(kit):
    def edit(step):
        if kit.gradients[0].norm() > 0 and step == 7:
            kit.optimizer.param_groups[0]["lr"] = 0.01

    train(kit, edit)


REFUSED = {
    skips: r"optimizer.step\(\) must follow: step 8 has run",
    edits_afterwards: "edited differently than in earlier steps, and this step has run",
    changes_lr: "lr, weight_decay or param_groups have changed since a value was read",
}


@pytest.mark.parametrize("loop", REFUSED, ids=lambda loop: loop.__name__)
def test_what_cannot_be_known_is_refused(tmp_path, loop):
    kit = Kit()
    with pytest.raises(UsageError, match=REFUSED[loop]), kit.session(tmp_path):
        loop(kit)
