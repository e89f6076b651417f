"""Calls of a loop in a wrong order: refused with the line."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside, marked_line  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import CsrunError, UsageError  # noqa: E402


def loss_of(kit, x, y):
    kit.optimizer.zero_grad()
    return kit.criterion(kit.model(x), y)


def each(kit, step):
    for number, (x, y) in enumerate(kit.train, 1):
        step(kit, number, x, y)


def two_backwards(kit, number, x, y):
    loss = loss_of(kit, x, y)
    loss.backward()
    if number == 5:
        loss.backward()  # here
    kit.optimizer.step()


def backward_after_the_step(kit, number, x, y):
    loss = loss_of(kit, x, y)
    loss.backward()
    kit.optimizer.step()
    if number == 5:
        kit.optimizer.zero_grad()
        loss.backward()  # here


def another_gradient(kit, number, x, y):
    loss = loss_of(kit, x, y)
    if number == 5:
        loss.backward(torch.tensor(2.0, dtype=torch.float64))  # here
    loss.backward()


def a_gradient_of_the_weights_alone(kit, number, x, y):
    loss_of(kit, x, y).backward()
    if number == 5:
        weight = kit.model[2].weight
        weight.grad = None
        weight.square().sum().backward()
    kit.optimizer.step()  # here


def frozen_after_the_batch(kit, number, x, y):
    if number == 5:
        kit.model[0].weight.requires_grad_(requires_grad=False)
    kit.optimizer.zero_grad()
    loss = kit.criterion(kit.model(x), y)
    loss.backward()
    kit.optimizer.step()


def a_step_that_is_skipped(kit, number, x, y):
    loss = loss_of(kit, x, y)
    if number == 5 and loss.item() > 0:
        return
    loss.backward()
    kit.optimizer.step()


ONCE = r"backward\(\) must be called once for each batch"
WRONG = {
    two_backwards: ONCE,
    backward_after_the_step: ONCE,
    another_gradient: r"backward\(\) takes no gradient",
    a_gradient_of_the_weights_alone: "the gradient of 2.weight must come from this",
    a_step_that_is_skipped: r"optimizer.step\(\) must follow: step",
}


@pytest.mark.parametrize("step", WRONG, ids=lambda step: step.__name__)
def test_a_call_that_is_out_of_order_in_step_five_is_refused(tmp_path, step):
    kit, marked = Kit(), step is not a_step_that_is_skipped
    line = marked_line(step) if marked else r"\d+"
    said = rf"test_call_order\.py:{line}: {WRONG[step]}"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        each(kit, step)


def test_a_loss_that_is_read_before_backward_is_pytorchs(tmp_path):
    def loop(kit):
        found = []
        for x, y in kit.train:
            loss = loss_of(kit, x, y)
            found.append(loss.item())
            loss.backward()
            kit.optimizer.step()
        return found

    beside(loop, tmp_path)


def test_a_parameter_may_be_frozen_after_the_batch_was_taken(tmp_path):
    def loop(kit):
        each(kit, frozen_after_the_batch)
        return [p.square().sum().item() for p in kit.model.parameters()]

    beside(loop, tmp_path)


class PairKit(Kit):
    """Kit with a second loader."""

    def __init__(self):
        super().__init__()
        self.other = DataLoader(TensorDataset(torch.linspace(0, 1, 48).double()), 8)

    def session(self, folder, **options):
        session = super().session(folder, **options)
        self.other = cbtorch.dataloader(self.other)
        return session


def test_batches_of_two_loaders_may_be_used_in_one_step(tmp_path):
    def loop(kit):
        found = []
        for _ in range(2):
            for (x, y), (share,) in zip(kit.train, kit.other, strict=True):
                found.append(loss_of(kit, x * share[:, None], y))
                found[-1].backward()
                kit.optimizer.step()
        return [loss.item() for loss in found]

    beside(loop, tmp_path, kit=PairKit)


def test_a_failure_that_the_loop_catches_is_raised_again(tmp_path):
    """Queued steps are lost with the failure: a loop that continued would train without them."""
    kit, caught = Kit(), {}
    kit.train.dataset.tensors[1][28] = 9

    def step(kit, number, x, y):
        try:
            loss_of(kit, x, y).backward()
            kit.optimizer.step()
            kit.model[0].weight.sum().item()
        except CsrunError as error:
            caught[number] = str(error)

    said = r"batch 3, row 4 .* must be in 0\.\.3, got 9"
    with pytest.raises(CsrunError, match=said), kit.session(tmp_path):
        each(kit, step)
    assert list(caught) == [4, 5, 6]
    assert len(set(caught.values())) == 1


def test_a_step_that_only_calls_layers_of_the_model_is_refused_without_a_loader(tmp_path):
    kit = Kit()
    said = r"neither taken a batch .* nor called the model: .*, not its methods or layers"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.update(kit.model[0](torch.ones(2, 6, dtype=torch.float64)).sum())
