"""Sums of step values in a script that is killed and run again: those of a single run."""

import contextlib
import signal

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


class KilledError(Exception):
    """Raised to end the script."""


def kit():
    """Kit with short last batches in training and evaluation."""
    made = Kit()
    torch.manual_seed(5)
    x, y = torch.randn(45, 6, dtype=torch.float64), torch.randint(4, (45,))
    made.train = DataLoader(TensorDataset(x, y), 8)
    made.val = DataLoader(TensorDataset(x[:21], y[:21]), 8)
    return made


def loop(kit, last=None):
    """Means and hits, read after all epochs. last: batch at which the script ends."""
    found, batches = [], 0

    def count():
        nonlocal batches
        batches += 1
        if batches == last:
            raise KilledError

    for _ in range(3):
        total, hits = 0.0, 0
        for x, y in kit.train:
            count()
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            kit.optimizer.step()
            total += loss.detach() * y.size(0)
        kit.model.eval()
        with torch.no_grad():
            for x, y in kit.val:
                count()
                found += y.tolist()
                out = kit.model(x)
                hits += (out.argmax(1) == y).sum()
                found.append(kit.criterion(out, y).item())
        kit.model.train()
        found += [total / 45, hits]
    return [float(number) for number in found]


@pytest.mark.parametrize("kills", [(9, 16), (17, 21), (20, 25)], ids=str)
def test_sums_that_a_killed_script_has_not_read_are_those_of_one_run(tmp_path, kills):
    for kill in kills:
        ours = kit()
        with contextlib.suppress(KilledError), ours.session(tmp_path):
            loop(ours, kill)
    ours, theirs = kit(), kit()
    with ours.session(tmp_path):
        found = loop(ours)
    torch.testing.assert_close(found, loop(theirs), rtol=1e-9, atol=1e-10)
    for name, value in ours.model.state_dict().items():
        torch.testing.assert_close(value, theirs.model.state_dict()[name], rtol=1e-9, atol=1e-10)


class TerminatedError(BaseException):
    """Stand-in for a task's termination by a signal."""


@pytest.fixture
def task():
    """Raise TerminatedError on SIGTERM, as a task of a job does."""

    def end(*of_signal):
        raise TerminatedError

    had = signal.signal(signal.SIGTERM, end)
    yield
    signal.signal(signal.SIGTERM, had)


@pytest.mark.parametrize(
    ("signum", "ends"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, TerminatedError)],
)
def test_a_run_ended_by_a_signal_after_collected_steps_resumes(tmp_path, task, signum, ends):
    """It waits for the order, while the loop is a step ahead of the checkpoint."""

    def hits(kit, interrupted=None):
        found, step = 0, 0
        for _ in range(3):
            for x, y in kit.train:
                step += 1
                kit.optimizer.zero_grad()
                out = kit.model(x)
                kit.criterion(out, y).backward()
                kit.optimizer.step()
                found += (out.argmax(1) == y).sum() * step
                if step == interrupted:
                    signal.raise_signal(signum)
        return int(found)

    first, again = kit(), kit()
    with (
        pytest.raises(ends),
        first.session(tmp_path, save_checkpoints_steps=4),
    ):
        hits(first, interrupted=16)
    with again.session(tmp_path, save_checkpoints_steps=4):
        found = hits(again)
    assert found == hits(kit())
