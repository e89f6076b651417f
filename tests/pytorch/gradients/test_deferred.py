"""zero_grad(set_to_none=False): gradients of zero, with which momentum and decay still update."""

from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import optim  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


def freezing(set_to_none):
    def loop(kit):
        losses = []
        for epoch in range(4):
            kit.model[0].weight.requires_grad_(epoch % 2 == 0)
            for x, y in kit.train:
                kit.optimizer.zero_grad(set_to_none=set_to_none)
                loss = kit.criterion(kit.model(x), y)
                loss.backward()
                kit.optimizer.step()
                losses.append(loss.detach())
        return losses

    return loop


@pytest.mark.parametrize(
    ("optimizer", "set_to_none"),
    [
        (lambda p: optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.1), False),
        (lambda p: optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.1), True),
        (lambda p: optim.Adam(p, 0.01), False),
    ],
    ids=["momentum and decay", "none", "adam"],
)
def test_a_frozen_parameter_is_updated_by_zeros_and_not_by_none(tmp_path, optimizer, set_to_none):
    beside(freezing(set_to_none), tmp_path, optimizer=optimizer)


def test_zeros_go_on_in_the_next_session(tmp_path):
    kits = Kit(), Kit()
    session = kits[0].session(tmp_path)
    for kit, block in zip(kits, (lambda: session, nullcontext), strict=True):
        for epoch in range(3):
            kit.model[0].weight.requires_grad_(epoch == 0)
            with block():
                for x, y in kit.train:
                    kit.optimizer.zero_grad(set_to_none=False)
                    kit.criterion(kit.model(x), y).backward()
                    kit.optimizer.step()
    ours, theirs = (kit.model.state_dict() for kit in kits)
    torch.testing.assert_close(dict(ours), dict(theirs), rtol=1e-10, atol=1e-12)


def test_zeros_that_become_none_amid_a_part_are_refused(tmp_path):
    kit = Kit()
    said = r"test_deferred.py:\d+: the gradient of 0.weight, to which backward\(\) adds nothing"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()
        kit.model[0].weight.requires_grad_(requires_grad=False)
        for step, (x, y) in enumerate(kit.train):
            kit.optimizer.zero_grad(set_to_none=step == 4)
            kit.criterion(kit.model(x), y).backward()
            kit.optimizer.step()
