"""The total norm that `clip_grad_norm_` returns: PyTorch's, from before clipping."""

import math

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch.nn.utils import clip_grad_norm_  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402

MOST = 0.3  # some steps' gradients are longer


def clip(kit, **options):
    return clip_grad_norm_(kit.model.parameters(), MOST, **options)


def at_once(kit):
    return in_passes(kit, lambda: clip(kit).item())


def in_passes(kit, edit):
    """Results of `edit` in each step of three passes, and the losses."""
    norms, losses = [], []
    for _ in range(3):
        losses += kit.train_once(lambda _: norms.append(edit()))
    return [*norms, *losses]


def at_the_end(kit):
    return in_passes(kit, lambda: clip(kit))


def every_third(kit):
    found = []

    def edit(step):
        norm = clip(kit)
        if step % 3 == 2:
            found.append(float(f"{norm:.9f}"))

    kit.train_once(edit)
    kit.train_once(edit)
    return found


def after_the_step(kit):
    found, norm = [], [None]
    for _ in range(2):
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            norm[0] = clip(kit)
            kit.optimizer.step()
            found += [norm[0].item(), norm[0] * 2, loss.item()]
    return found


def compared(kit):
    def edit():
        norm = clip(kit)
        big = norm > MOST
        return float(big) + 2 * bool(norm.isfinite()) + (norm * 3 + 1).item()

    return in_passes(kit, edit)


def in_sums(kit):
    """Sums of norms in Python numbers and tensors, read at the end."""
    total, other, most = 0.0, torch.zeros((), dtype=torch.float64), []
    for _ in range(2):
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            norm = clip(kit)
            total = total + norm
            most.append(torch.stack([norm, loss.detach()]).max())
            kit.optimizer.step()
            other += norm
    return [total, other, *most]


def beside_the_last_one(kit):
    mean, last = 1.0, [None]

    def edit():
        nonlocal mean
        norm = clip(kit)
        mean = 0.9 * mean + 0.1 * norm
        change = norm * 0 if last[0] is None else norm - last[0]
        last[0] = norm
        return change + mean

    return in_passes(kit, edit)


def after_the_loss(kit):
    found = []
    for _ in range(2):
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            found += [loss.item(), clip(kit).item()]
            kit.optimizer.step()
    return found


def not_foreach(kit):
    return in_passes(kit, lambda: clip(kit, foreach=False).item())


def foreach(kit):
    return in_passes(kit, lambda: clip(kit, foreach=True).item())


def not_clipped(kit):
    return in_passes(kit, lambda: clip_grad_norm_(kit.model.parameters(), math.inf).item())


def scaled_before(kit):
    def edit():
        for gradient in kit.gradients:
            gradient.mul_(0.5)
        return clip(kit).item()

    return in_passes(kit, edit)


def from_the_second_pass(kit):
    kit.train_once()
    return in_passes(kit, lambda: clip(kit).item())


LOOPS = (
    *(at_once, at_the_end, every_third, after_the_step, compared, in_sums, after_the_loss),
    *(not_foreach, foreach, not_clipped, scaled_before, from_the_second_pass, beside_the_last_one),
)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_the_norm_is_pytorchs(tmp_path, loop):
    beside(loop, tmp_path)


@pytest.mark.parametrize("loop", [at_once, in_sums], ids=lambda loop: loop.__name__)
def test_of_steps_that_are_all_recorded(tmp_path, loop):
    beside(loop, tmp_path, settings={"fast": False})


def accumulated(kit, reads_losses=False):
    """Norms of gradients accumulated over three batches; a pass has six."""
    found = []
    for _ in range(3):
        kit.optimizer.zero_grad()
        for number, (x, y) in enumerate(kit.train):
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            if reads_losses:
                found.append(loss.item())
            if number % 3 == 2:
                norm = clip(kit)
                found.append(norm.item() if number == 2 else norm)
                kit.optimizer.step()
                kit.optimizer.zero_grad()
    return found


@pytest.mark.parametrize("reads_losses", [False, True])
@pytest.mark.parametrize("fast", [False, True])
def test_of_accumulated_gradients_it_is_that_of_the_sum(tmp_path, fast, reads_losses):
    beside(lambda kit: accumulated(kit, reads_losses), tmp_path, settings={"fast": fast})


def test_micro_batches(tmp_path):
    beside(at_once, tmp_path, settings={"micro_batch_size": 4})


class Shorter(Kit):
    """Kit whose last batch has fewer samples, and so another program."""

    def __init__(self):
        super().__init__()
        self.train = DataLoader(self.train.dataset, 10)


@pytest.mark.parametrize("loop", [at_once, at_the_end], ids=lambda loop: loop.__name__)
def test_a_shorter_last_batch(tmp_path, loop):
    beside(loop, tmp_path, kit=Shorter)


def test_a_resumed_loop_has_the_norms_that_it_has_read(tmp_path):
    def loop(kit, passes):
        norms = []
        for _ in range(passes):
            kit.train_once(lambda _: norms.append(clip(kit).item()))
        return norms

    found = []
    for passes in (2, 4):
        kit = Kit()
        with kit.session(tmp_path):
            found.append(loop(kit, passes))
    assert found[1] == pytest.approx(loop(Kit(), 4), rel=1e-6)
    assert found[1][:12] == found[0]


def skips(kit):
    for x, y in kit.train:
        kit.optimizer.zero_grad()
        kit.criterion(kit.model(x), y).backward()
        if clip(kit) < 1e9:
            continue
        kit.optimizer.step()


def edits_by_it(kit):
    def edit(step):
        if clip(kit).item() > 0:
            kit.gradients[0].mul_(0.5 + 0.1 * step)

    kit.train_once(edit)


REFUSED = {
    skips: r"optimizer.step\(\) must follow: step 1 has run",
    edits_by_it: "this step has run, since a value of it was read",
}


@pytest.mark.parametrize("begun", [0, 1])
@pytest.mark.parametrize("loop", REFUSED, ids=lambda loop: loop.__name__)
def test_other_numbers_and_other_updates_are_refused(tmp_path, loop, begun):
    kit = Kit()
    said = REFUSED[loop].replace("step 1", f"step {1 + 6 * begun}")
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for _ in range(begun):
            kit.train_once(lambda _: clip(kit))
        loop(kit)


def clipped_before_backward(kit):
    """As in locuslab's TCN: zero_grad() set all gradients to None, so that nothing is clipped."""
    found = []
    for x, y in kit.train:
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x), y)
        norm = clip_grad_norm_(kit.model.parameters(), 0.01)
        loss.backward()
        kit.optimizer.step()
        found += [loss.item(), norm.item()]
    return found


def unset_before_backward(kit):
    """Loop that counts gradients that are not None."""
    found = []
    for x, y in kit.train:
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x), y)
        found.append(sum(each is not None for each in kit.gradients))
        loss.backward()
        found.append(sum(each is not None for each in kit.gradients))
        kit.optimizer.step()
    return found


@pytest.mark.parametrize("loop", [clipped_before_backward, unset_before_backward])
@pytest.mark.parametrize("fast", [True, False])
def test_gradients_are_none_before_backward(tmp_path, loop, fast):
    beside(loop, tmp_path, settings={"fast": fast})
