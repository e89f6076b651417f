"""Calls of step 1 repeated by later steps."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn, optim  # noqa: E402
from torch.nn import functional  # noqa: E402


def test_an_evaluation_writes_into_its_values(tmp_path):
    """As in Hugging Face's Trainer, which scales the loss returned by a model."""

    def loop(kit):
        found = []
        for _ in range(2):
            found += kit.train_once()
            with torch.no_grad():
                for x, y in kit.val:
                    out = kit.model(x)
                    out *= 3
                    found.append(kit.criterion(out, y))
        return found

    beside(loop, tmp_path)


def smoothed(out, y):
    """Label smoothing of the Annotated Transformer: a distribution written in slices."""
    found = out.log_softmax(1)
    truth = found.data.clone().fill_(0.1 / 2)
    truth.scatter_(1, y[:, None], 0.9)
    truth[:, 0] = 0
    truth[y == 0] = 0
    return functional.kl_div(found, truth, reduction="sum")


def of_sorted(out, y):
    """Lovász loss: differences of adjacent values, in place."""
    errors, order = (1 - out.flatten()).sort(descending=True)
    truth = functional.one_hot(y, 4).double().flatten()[order]
    steps = 1 - (truth.sum() - truth.cumsum(0)) / (truth.sum() + (1 - truth).cumsum(0))
    steps[1:] = steps[1:] - steps[:-1]
    return torch.dot(functional.relu(errors), steps)


def of_view(out, y):
    """View created before the write."""
    values = out * 2
    first = values[:, 0]
    values[:, :2] = out[:, 2:] ** 2
    return functional.cross_entropy(values, y) + first.square().mean()


@pytest.mark.parametrize("loss_of", [smoothed, of_sorted, of_view])
def test_the_loss_writes_parts_of_its_values(tmp_path, loss_of, caplog):
    def loop(kit):
        kit.criterion = loss_of
        return kit.train_once() + kit.train_once()

    with caplog.at_level("INFO", "csrun"):
        beside(loop, tmp_path, settings={"save_checkpoints_steps": 4})
    is_fast = not any("each step is recorded" in line for line in caplog.messages)
    assert is_fast == (loss_of is not of_view)


class TakesMore(nn.Module):
    """Model with an argument on which the loss does not depend."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4).double()

    def forward(self, x, count=None):
        return self.linear(x)


class TakesMoreKit(Kit):
    def __init__(self):
        super().__init__()
        self.model = TakesMore()
        self.optimizer = optim.SGD(self.model.parameters(), 0.05)


def test_the_model_leaves_a_value_of_the_batch_unused(tmp_path, caplog):
    """As in Hugging Face's Trainer, which passes the number of labels to each model."""

    def loop(kit):
        found = []
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            count = sum([y.ne(0).sum()]).to(torch.device("cpu")) / 1
            loss = kit.criterion(kit.model(x, count=count), y)
            loss.backward()
            kit.optimizer.step()
            found.append(loss.detach())
        return found

    with caplog.at_level("INFO", "csrun"):
        beside(loop, tmp_path, kit=TakesMoreKit)
    assert not any("each step is recorded" in line for line in caplog.messages)
