"""Orders of steps sent while the loop runs on: same results as synchronous steps."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit  # noqa: E402
from torch.optim.lr_scheduler import StepLR  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from csrun.runtime.chief.cpu import CpuOrder, CpuProgram  # noqa: E402

EPOCHS, BATCHES, EVERY, READ_AT = 4, 30, 25, 9


@pytest.fixture(params=[False, True], ids=["at work", "done"])
def ordered(request, monkeypatch):
    """Ranges of steps of each order, as (first, last), on a program that runs asynchronously."""
    found, order = [], CpuProgram.order

    def noted(self, steps):
        found.append((steps.first, steps.first + steps.count))
        return order(self, steps)

    monkeypatch.setattr(CpuProgram, "runs_asynchronously", True)
    monkeypatch.setattr(CpuProgram, "order", noted)
    monkeypatch.setattr(CpuOrder, "is_done", request.param)
    return found


def kit():
    """Kit with many batches of 4."""
    made = Kit()
    torch.manual_seed(5)
    x, y = torch.randn(4 * BATCHES, 6, dtype=torch.float64), torch.randint(4, (4 * BATCHES,))
    made.train = DataLoader(TensorDataset(x, y), 4)
    return made


def reads_sometimes(kit):
    """Loop that reads the loss every few steps; a schedule changes the rate."""
    schedule, found = StepLR(kit.optimizer, 7, 0.9), []
    for epoch in range(EPOCHS):
        for step, (x, y) in enumerate(kit.train, epoch * len(kit.train)):
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            kit.optimizer.step()
            schedule.step()
            if step % EVERY == EVERY - 1:
                found.append(loss.item())
    return found


def sums_up(kit):
    """Sums of losses and hits, read at the end of each pass."""
    total, hits, found = 0, 0, []
    for _ in range(EPOCHS):
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            out = kit.model(x)
            loss = kit.criterion(out, y)
            loss.backward()
            kit.optimizer.step()
            total += loss.detach()
            hits += (out.argmax(1) == y).sum()
        found.append(float(total))
    return [*found, float(hits)]


def has_outputs_in_hand(kit):
    """Loop that keeps outputs, and computes with one of them much later."""
    kept, found = [], []
    for epoch in range(EPOCHS):
        kept.clear()
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            out = kit.model(x)
            kit.criterion(out, y).backward()
            kit.optimizer.step()
            kept.append(out)
        found += [epoch if epoch < EPOCHS // 2 else kept[1].sum().item()]
    return found


def trains_and_evaluates(kit):
    """Loop with a validation after each pass of training."""
    found = []
    for _ in range(EPOCHS):
        kit.train_once()
        kit.model.eval()
        with torch.no_grad():
            found += [kit.criterion(kit.model(x), y).item() for x, y in kit.val]
        kit.model.train()
    return found


@pytest.mark.parametrize("loop", [reads_sometimes, sums_up, trains_and_evaluates])
def test_steps_are_ordered_before_they_are_asked_for(tmp_path, ordered, loop):
    ours, theirs = kit(), kit()
    with ours.session(tmp_path, save_checkpoints_steps=40):
        found = loop(ours)
    torch.testing.assert_close(found, loop(theirs), rtol=1e-9, atol=1e-10)
    for name, value in ours.model.state_dict().items():
        torch.testing.assert_close(value, theirs.model.state_dict()[name], rtol=1e-9, atol=1e-10)


def test_the_wafer_is_at_work_while_the_loop_goes_on(tmp_path, ordered):
    ours, orders = kit(), []
    with ours.session(tmp_path):
        for step, (x, y) in enumerate(ours.train):
            ours.optimizer.zero_grad()
            loss = ours.criterion(ours.model(x), y)
            loss.backward()
            ours.optimizer.step()
            if step == READ_AT:
                loss.item()
            orders.append(len(ordered))
    assert orders[READ_AT] < orders[-1], "nobody has read a value since"


def test_outputs_in_the_loops_hand_hold_steps_back(tmp_path, ordered):
    """Outputs may still be read: the program is compiled again, and no step is lost."""
    ours, theirs = kit(), kit()
    with ours.session(tmp_path):
        found = has_outputs_in_hand(ours)
    torch.testing.assert_close(found, has_outputs_in_hand(theirs), rtol=1e-9, atol=1e-10)


def test_an_order_goes_on_in_the_next_pass(tmp_path, ordered):
    """The next pass's order of samples is known in advance."""
    ours = kit()
    with ours.session(tmp_path):
        ours.train_once()
        ours.train_once()
    assert any(first < BATCHES < last for first, last in ordered)


def test_batches_continue_across_passes_with_validations(tmp_path, monkeypatch):
    """From the third pass on, as draws of the validation from torch's generator are known."""
    begun, begin = [], CpuProgram.begin

    def noted(self, first=0, *options):
        begun.append((self, first))
        begin(self, first, *options)

    monkeypatch.setattr(CpuProgram, "begin", noted)
    ours, theirs = kit(), kit()
    for each in (ours, theirs):
        each.train = DataLoader(each.train.dataset, 4, shuffle=True)
    torch.manual_seed(6)
    with ours.session(tmp_path):
        found = trains_and_evaluates(ours)
    torch.manual_seed(6)
    torch.testing.assert_close(found, trains_and_evaluates(theirs), rtol=1e-9, atol=1e-10)
    assert {first for _, first in begun if first} <= {BATCHES, len(ours.val)}
