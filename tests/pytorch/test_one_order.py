"""All parts of a loop take their batches from one order of them, whichever comes first or anew."""

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


class StoppedError(Exception):
    """The script ends here."""


def kit(samples):
    """Batches of 8, the last one of what is left."""
    made = Kit()
    torch.manual_seed(5)
    x, y = torch.randn(samples, 6, dtype=torch.float64), torch.randint(4, (samples,))
    made.train = DataLoader(TensorDataset(x, y), 8)
    return made


def value_in_one_step(kit):
    """One of the later steps reads what no other does, so that the program is compiled anew."""
    found = []
    for epoch in range(3):
        for step, (x, y) in enumerate(kit.train):
            kit.optimizer.zero_grad()
            out = kit.model(x)
            loss = kit.criterion(out, y)
            loss.backward()
            if (epoch, step) == (1, 4):
                found.append(out.sum().item())
            kit.optimizer.step()
            found.append(loss.item())
    return found


def value_and_clipping(kit):
    """Steps with clipping and without take turns; one without is compiled anew."""
    found = []
    for epoch in range(5):
        for step, (x, y) in enumerate(kit.train):
            kit.optimizer.zero_grad()
            out = kit.model(x)
            loss = kit.criterion(out, y)
            loss.backward()
            if epoch >= 2 and step % 2:
                nn.utils.clip_grad_norm_(kit.model.parameters(), 0.1)
            kit.optimizer.step()
            if (epoch, step) == (3, 2):
                found.append(out.sum().detach())
            found.append(loss.detach())
    return found


def stops(after):
    def loop(kit):
        found = []
        for _ in range(3):
            for x, y in kit.train:
                if len(found) == after:
                    raise StoppedError
                kit.optimizer.zero_grad()
                loss = kit.criterion(kit.model(x), y)
                loss.backward()
                kit.optimizer.step()
                found.append(loss.item())
        return found

    return loop


def same(ours, theirs, loop, folder):
    """The weights and what was read, of both."""
    with ours.session(folder):
        found = [float(number) for number in loop(ours)]
    torch.testing.assert_close(found, [float(n) for n in loop(theirs)], rtol=1e-9, atol=1e-10)
    for name, value in ours.model.state_dict().items():
        torch.testing.assert_close(value, theirs.model.state_dict()[name], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("loop", "samples"), [(value_in_one_step, 45), (value_and_clipping, 48)])
def test_a_part_that_is_compiled_anew_goes_on_where_the_others_are(tmp_path, loop, samples):
    same(kit(samples), kit(samples), loop, tmp_path)


@pytest.mark.parametrize("taken", [5, 11])
def test_a_run_goes_on_with_the_short_last_batch(tmp_path, taken, caplog):
    ours = kit(45)
    with contextlib.suppress(StoppedError), ours.session(tmp_path):
        stops(taken)(ours)
    same(kit(45), kit(45), stops(None), tmp_path)
    assert not any("batch_size was" in line for line in caplog.messages)
