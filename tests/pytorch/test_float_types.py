"""Float32 models with a few float64 tensors."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit  # noqa: E402
from torch import nn, optim  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from csrun.pytorch.errors import CaptureError  # noqa: E402
from csrun.records import checkpoints  # noqa: E402
from csrun.records.torch_names import stored_name  # noqa: E402


class Scaled(nn.Module):
    """Float32 products between float64 tensors: parameters, a buffer, a number."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 9, bias=False), nn.BatchNorm1d(9)
        self.last = nn.Linear(9, 4)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 4, dtype=torch.float64))
        self.temperature = nn.Parameter(torch.tensor(1.3, dtype=torch.float64))
        self.register_buffer("shift", torch.linspace(-1, 1, 9, dtype=torch.float64))
        self.register_buffer("unused", torch.ones(3, dtype=torch.float64))

    def forward(self, x):
        hidden = torch.tanh(self.norm(self.first(x)) + self.shift.float())
        return self.last(hidden) * self.scale / self.temperature


class Mixed(Kit):
    """Kit with float32 data."""

    def __init__(self, model, optimizer):
        super().__init__()
        torch.manual_seed(4)
        self.model = copy.deepcopy(model)
        self.optimizer = optimizer(self.model.parameters())
        x, y = self.train.dataset.tensors
        self.train = DataLoader(TensorDataset(x.float(), y), 8)
        self.val = DataLoader(TensorDataset(x[:20].float(), y[:20]), 4)


def passes(kit, edit=lambda step: None):
    """Trainings with evaluations between them, in a loop that reads and writes weights."""
    found = []
    for _ in range(2):
        kit.model.train()
        found += kit.train_once(edit)
        kit.model.eval()
        with torch.no_grad():
            found += [kit.criterion(kit.model(x), y) for x, y in kit.val]
            found += [p.abs().sum() for p in kit.model.parameters()]
            kit.model.scale.clamp_(max=1.4)
    return found


def compare(folder, optimizer, loop=passes, model=None, **settings):
    """Assert equal results of a loop and PyTorch's; return both."""
    model = Scaled() if model is None else model
    ours, theirs = Mixed(model, optimizer), Mixed(model, optimizer)
    with ours.session(folder, **settings):
        found = [float(x) for x in loop(ours)]
    expected = [float(x) for x in loop(theirs)]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=1e-6)
    for (name, value), other in zip(
        ours.model.state_dict().items(), theirs.model.state_dict().values(), strict=True
    ):
        assert value.dtype == other.dtype
        torch.testing.assert_close(value, other, rtol=1e-5, atol=1e-6, msg=name)
    return ours, theirs


OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, 0.05, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, 0.01),
    "recorded": lambda p: optim.Rprop(p, 0.001),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("fast", [True, False])
def test_a_tensor_of_float64_in_a_model_of_float32(tmp_path, name, fast, caplog):
    caplog.set_level("INFO", "csrun")
    ours, theirs = compare(tmp_path, OPTIMIZERS[name], fast=fast)
    said = [r.message for r in caplog.records if "the store has float64 for all" in r.message]
    assert len(said) == 1
    states = zip(ours.optimizer.state.values(), theirs.optimizer.state.values(), strict=True)
    for own, other in states:
        assert own.keys() == other.keys()
        for key, value in other.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(own[key], value, rtol=1e-4, atol=1e-6)


def test_its_update_has_float64s_digits(tmp_path):
    """With a small learning rate, float32 would round off most of each update."""
    kits = compare(tmp_path, lambda p: optim.SGD(p, 1e-7), Mixed.train_once)
    ours, theirs = (kit.model.scale.detach() for kit in kits)
    assert (theirs - theirs.float()).abs().max() > 1e-9
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    saved = checkpoints.latest(tmp_path).tensor(stored_name("scale"))
    assert torch.equal(torch.from_numpy(saved), ours)


def test_gradients_are_clipped(tmp_path):
    def clipped(kit):
        norms = []
        found = passes(
            kit,
            lambda step: norms.append(nn.utils.clip_grad_norm_(kit.model.parameters(), 0.1)),
        )
        return [*found, *norms]

    compare(tmp_path, OPTIMIZERS["sgd"], clipped)


@pytest.mark.parametrize("fast", [True, False])
def test_a_killed_run_resumes_with_the_same_bits(tmp_path, fast):
    def run(folder, count):
        torch.manual_seed(6)
        kit = Mixed(Scaled(), OPTIMIZERS["adamw"])
        with kit.session(folder, fast=fast):
            losses = [float(x) for _ in range(count) for x in kit.train_once()]
        return losses, [x.tolist() for x in kit.model.state_dict().values()]

    run(tmp_path / "a", 1)
    assert run(tmp_path / "a", 2) == run(tmp_path / "b", 2)


class Target(nn.Module):
    """Kit with float32 targets."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x):
        return self.layer(x.float())


def test_batches_of_float64_that_the_model_casts(tmp_path):
    """NumPy's float64 targets: PyTorch promotes the loss to float64."""

    def loop(kit):
        mse = nn.functional.mse_loss
        return [kit.update(mse(kit.model(x), x[:, :4] ** 2)) for x, _ in kit.train]

    class Wide(Mixed):
        def __init__(self, *given):
            super().__init__(*given)
            x, y = self.train.dataset.tensors
            self.train = DataLoader(TensorDataset(x.double(), y), 8)

    ours, theirs = (Wide(Target(), OPTIMIZERS["sgd"]) for _ in range(2))
    theirs.model.load_state_dict(ours.model.state_dict())
    with ours.session(tmp_path):
        found = [float(x) for x in loop(ours)]
    assert found == pytest.approx([float(x) for x in loop(theirs)], rel=1e-6)
    for own, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


def test_products_of_two_types_are_refused_as_by_pytorch(tmp_path):
    kit = Mixed(Scaled(), OPTIMIZERS["sgd"])
    said = "aten.mm.*operands must have the same element type"
    with pytest.raises(CaptureError, match=said), kit.session(tmp_path):
        for x, y in kit.train:
            kit.update(kit.criterion(kit.model(x.double()), y))
