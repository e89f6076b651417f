"""A loss that the loop computes itself, of parts and transposes of what the model returns."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch.nn import functional  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


def of_transposes(out, y):
    z = functional.normalize(out, dim=1)
    return functional.cross_entropy(z @ z.T, torch.arange(8)) + (z.mT @ z).real.square().mean()


def of_rows(out, y):
    return sum(row.square().mean() for row in out)


def of_pairs(out, y):
    return sum(functional.cross_entropy(p, q) for p, q in zip(out, y, strict=True))


def of_unpacked(out, y):
    mean, variance, *rest = out
    return (mean - variance.exp()).square().mean() + rest[0].mean()


def of_broadcast(out, y):
    first, second = torch.broadcast_tensors(out[:, :2], out[:, 2:])
    return (first * second).mean()


def train(kit, loss_of):
    losses = []
    for x, y in kit.train:
        kit.optimizer.zero_grad()
        loss = loss_of(kit.model(x), y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("loss_of", [of_transposes, of_rows, of_pairs, of_unpacked, of_broadcast])
def test_it_is_pytorchs(tmp_path, loss_of):
    beside(lambda kit: train(kit, loss_of), tmp_path)


def test_a_hook_on_a_value_is_refused(tmp_path):
    def hooked(out, y):
        out.register_hook(lambda g: g * 0.5)
        return functional.cross_entropy(out, y)

    said = r"test_tokens.py:\d+: a hook on a value of the loop would run in the first steps"
    kit = Kit()
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        train(kit, hooked)
