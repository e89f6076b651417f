"""Other models in the loop: copies of the trained one, averages, and teachers."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402


def test_a_copy_of_the_model_takes_tensors_of_the_loops_own(tmp_path):
    def loop(kit):
        (x, _), found = kit.train.dataset.tensors, []
        for _ in range(2):
            found += kit.train_once()
            with torch.no_grad():
                found += copy.deepcopy(kit.model)(x).argmax(1).tolist()
        return found

    beside(loop, tmp_path)


def taught(kit, change=lambda teacher: None):
    """Distillation: a teacher whose parameters require gradients is called under no_grad."""
    torch.manual_seed(5)
    teacher = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).double().eval()
    found = []
    for _ in range(3):
        for x, _ in kit.train:
            with torch.no_grad():
                aim = teacher(x).softmax(1)
            kit.optimizer.zero_grad()
            loss = f.kl_div(f.log_softmax(kit.model(x), 1), aim, reduction="batchmean")
            loss.backward()
            kit.optimizer.step()
            found.append(loss.detach())
        with torch.no_grad():
            change(teacher)
    return found


def test_a_teacher_is_called_under_no_grad(tmp_path):
    beside(taught, tmp_path)


def test_a_teacher_may_change_between_steps(tmp_path):
    beside(lambda kit: taught(kit, lambda teacher: teacher[0].weight.mul_(2)), tmp_path)


def test_data_of_a_copy_is_set_to_an_average_within_a_step(tmp_path):
    """As in the update of MoCo's momentum encoder."""

    def loop(kit):
        copied, found = copy.deepcopy(kit.model), []
        for x, _ in kit.train:
            out = kit.model(x)
            with torch.no_grad():
                for mine, p in zip(copied.parameters(), kit.model.parameters(), strict=True):
                    mine.data = mine.data * 0.5 + p.data * 0.5
                aim = copied(x + 1)
            kit.optimizer.zero_grad()
            loss = (out - aim).square().mean()
            loss.backward()
            kit.optimizer.step()
            found.append(loss.detach())
        return found

    beside(loop, tmp_path)
