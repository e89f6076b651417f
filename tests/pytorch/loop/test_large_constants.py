"""A teacher with many weights: stored in files next to the program, not in its text."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import beside  # noqa: E402
from torch import nn  # noqa: E402

from csrun.executable import UnreadableError, load  # noqa: E402


def taught(kit):
    torch.manual_seed(5)
    teacher = nn.Sequential(nn.Linear(6, 3000), nn.Tanh(), nn.Linear(3000, 4)).double().eval()
    for _ in range(2):
        for x, _ in kit.train:
            with torch.no_grad():
                aim = teacher(x)
            kit.optimizer.zero_grad()
            loss = (kit.model(x) - aim).square().mean()
            loss.backward()
            kit.optimizer.step()
            yield loss.detach()


def test_a_large_teacher_gives_pytorchs_numbers(tmp_path):
    beside(taught, tmp_path)
    for directory in tmp_path.rglob("tfcs_*"):
        assert (directory / "program.py").stat().st_size < 100_000
        files = sorted(directory.glob("*.npy"))
        assert sum(file.stat().st_size for file in files) > 8 * 2 * 3000 * 4
        load(directory)
        files[0].unlink()
        with pytest.raises(UnreadableError, match=files[0].name):
            load(directory)
