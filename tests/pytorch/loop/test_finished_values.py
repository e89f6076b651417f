"""Values of recorded steps that have finished: freed with all that they depend on."""

import gc
import io

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def loss_of(kit, x, y):
    kit.optimizer.zero_grad()
    loss = kit.criterion(kit.model(x), y)
    loss.backward()
    return loss


def reads_values(kit, x, y):
    loss = loss_of(kit, x, y)
    kit.model[0].weight.grad.norm().item()
    kit.optimizer.step()
    loss.item()


def reads_the_norm(kit, x, y):
    loss_of(kit, x, y)
    nn.utils.clip_grad_norm_(kit.model.parameters(), 0.5).item()
    kit.optimizer.step()


def weights(width):
    """Addresses of all tensors with the shape of the model's large weight."""
    kinds = torch.Tensor, nn.Parameter
    found = (x for x in gc.get_objects() if type(x) in kinds and not x.is_meta)
    return {x.data_ptr() for x in found if x.shape == (width, 6) and x.dtype is torch.float64}


@pytest.mark.parametrize(
    ("step", "is_list", "width"),  # a width of no other tensor, in no other test
    [(reads_values, False, 97), (reads_the_norm, False, 101), (reads_values, True, 103)],
)
def test_no_copy_of_the_weights_is_left(tmp_path, no_collector, step, is_list, width):
    kit = Kit(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 4))
    cbtorch.initialize(model_dir=tmp_path, fast=False)
    cbtorch.module(kit.model)
    loader, model, optimizer = cbtorch.dataloader(kit.train), kit.model, kit.optimizer
    given = ([model], [optimizer]) if is_list else (model, optimizer)
    with cbtorch.Session(*given, mode="train"):
        for _ in range(2):
            for x, y in loader:
                step(kit, x, y)
        del x, y
        optimizer.zero_grad()
    kept = optimizer.state[kit.model[0].weight]["momentum_buffer"]
    assert weights(width) == {kit.model[0].weight.data_ptr(), kept.data_ptr()}


@pytest.mark.parametrize("when", ["forward", "backward", "step"])
@pytest.mark.parametrize("fast", [True, False])
def test_terms_of_a_loss_that_the_loop_has_created_are_saved_with_their_values(
    tmp_path, when, fast
):
    def loop(kit):
        found = []

        def save(now):
            if now == when:
                kept = io.BytesIO()
                torch.save([terms, terms.detach()], kept)
                kept.seek(0)
                found.extend(x for each in torch.load(kept) for x in each.tolist())

        for x, y in kit.train:
            kit.optimizer.zero_grad()
            terms, loss = torch.zeros(2, dtype=torch.float64), kit.criterion(kit.model(x), y)
            terms[0] = loss
            terms[1] = 0.5 * loss
            save("forward")
            terms.sum().backward()
            save("backward")
            kit.optimizer.step()
            save("step")
        return found

    beside(loop, tmp_path, settings={"fast": fast})
