"""Errors in recorded steps, of PyTorch or csrun: the message has the line and the layer."""

import re
from traceback import walk_tb

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn, optim  # noqa: E402
from torch.distributions import Categorical, MixtureSameFamily, Normal  # noqa: E402
from torch.nn import functional as f  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import CsrunError, UsageError  # noqa: E402
from csrun.pytorch.operators import EMITTERS, Emission, emit_operator  # noqa: E402
from csrun.pytorch.operators.base import Unsupported  # noqa: E402
from csrun.pytorch.record.recorder import StepRecorder  # noqa: E402

STEPS = 6


class Network(nn.Module):
    """Two layers, and one that forward does not call."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.unused = nn.Linear(6, 9), nn.Linear(9, 4), nn.Linear(3, 3)

    def forward(self, x):
        return self.outer(self.inner(x).tanh())


class Ragged(Dataset):
    """Samples of which the last third is longer."""

    def __len__(self):
        return 8 * STEPS

    def __getitem__(self, index):
        return torch.ones(6 if index < 32 else 7, dtype=torch.float64), index % 4


class Script(Kit):
    """Training of the network; `loop` calls a step for each batch."""

    def __init__(self):
        super().__init__(
            Network(), optimizer=lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1)
        )

    def loop(self, step):
        for x, y in self.train:
            step(self, x, y)

    def loss(self, x, y):
        self.optimizer.zero_grad()
        return self.criterion(self.model(x), y)


def plain(script, x, y):
    script.loss(x, y).backward()
    script.optimizer.step()


def test_batches_that_change_their_shape_are_refused_by_the_loaders_line(tmp_path):
    script = Script()
    script.train = DataLoader(Ragged(), 8)
    said = r"torch_loops.py:\d+: .*a row of part 0 had shape \[6\] and now has \[7\]: have collate"
    with pytest.raises(CsrunError, match=said), script.session(tmp_path):
        script.loop(plain)


def test_a_parameter_without_a_gradient_stays_and_is_told_of(tmp_path, caplog):
    script = Script()
    before = script.model[0].unused.weight.clone()
    with script.session(tmp_path):
        script.loop(plain)
    assert torch.equal(script.model[0].unused.weight, before)
    (said,) = (line for line in caplog.messages if "no gradient for" in line)
    assert re.match(r".*test_recorded_step\.py:\d+: ", said)
    assert "0.unused.weight, 0.unused.bias" in said


def does_not_fit(script, x, y):
    script.loss(torch.cat([x, x], 1), y).backward()


def does_not_fit_outside(script, x, y):
    script.model(x).expand_as(x).sum().backward()


def is_refused_by_pytorch(script, x, y):
    f.cross_entropy(script.model(x), y.tolist()).backward()


def writes_what_the_gradient_needs(script, x, y):
    (out := script.model(x).exp()).square().add(out.add_(1)).sum().backward()


def has_an_error_of_its_own(script, x, y):
    raise KeyError("of the user's")


ERRORS = {
    does_not_fit: (Network.forward, r"layer 0.inner: PyTorch raises RuntimeError: .*8, 12"),
    does_not_fit_outside: (None, "PyTorch raises RuntimeError: .*must match the existing size"),
    is_refused_by_pytorch: (None, r"PyTorch raises TypeError: cross_entropy_loss\(\).*be Tensor"),
    writes_what_the_gradient_needs: (None, r"PyTorch raises RuntimeError: .*an inplace operation"),
}


def first_line(function):
    """Pattern of the place of a function's first line."""
    return rf"test_recorded_step\.py:{function.__code__.co_firstlineno + 1}: "


@pytest.mark.parametrize("step", ERRORS, ids=lambda step: step.__name__)
def test_what_pytorch_refuses_is_said_with_line_and_layer(tmp_path, step):
    script, (place, said) = Script(), ERRORS[step]
    with (
        pytest.raises(UsageError, match=first_line(place or step) + said),
        script.session(tmp_path),
    ):
        script.loop(step)


def test_an_error_of_the_loops_own_is_the_users(tmp_path):
    script = Script()
    with pytest.raises(KeyError, match="of the user's"), script.session(tmp_path):
        script.loop(has_an_error_of_its_own)


def bug(*given, **options):
    raise IndexError("of csrun's own")


def test_a_bug_of_an_emitter_keeps_its_traceback_and_notes_the_line(tmp_path, monkeypatch):
    monkeypatch.setitem(EMITTERS, "aten.tanh.default", bug)
    place = first_line(Network.forward) + "aten.tanh.default"
    script = Script()
    with pytest.raises(IndexError, match="of csrun's own") as error, script.session(tmp_path):
        script.loop(plain)
    assert re.search(place, error.value.__notes__[0]), error.value.__notes__
    assert any(frame.f_code is bug.__code__ for frame, _ in walk_tb(error.value.__traceback__))


def test_a_bug_of_the_recorder_keeps_its_traceback_and_notes_line_and_layer(tmp_path, monkeypatch):
    monkeypatch.setattr(StepRecorder, "_storages_of", None)  # which is called
    place = first_line(Network.forward) + "layer 0.inner: "
    script = Script()
    with pytest.raises(TypeError, match="not callable") as error, script.session(tmp_path):
        script.loop(plain)
    assert re.search(place, error.value.__notes__[0]), error.value.__notes__


def test_an_option_that_an_emitter_does_not_have_is_refused():
    emission = Emission(None, "float32")
    with pytest.raises(Unsupported, match=r"this form .*'saturates'"):
        emit_operator(emission, "aten.tanh.default", (None,), {"saturates": True})


class Keeping(nn.Module):
    """Network that keeps a value as an attribute."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 9), nn.Linear(9, 4)

    def forward(self, x):
        self.hidden = self.inner(x).tanh()
        return self.outer(self.hidden)


def test_transforms_of_functions_are_refused_in_the_loop(tmp_path):
    kit = Kit()

    def loss_of(weights, x, y):
        return f.cross_entropy(torch.func.functional_call(kit.model, weights, (x,)), y)

    said = r"test_recorded_step.py:\d+: torch.func's grad and vmap in the loop"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for x, y in kit.train:
            weights = {name: p.detach() for name, p in kit.model.named_parameters()}
            torch.func.grad(loss_of)(weights, x, y)


def test_what_forward_has_kept_is_not_read_after_its_step(tmp_path):
    kit = Kit(Keeping())
    said = r"test_recorded_step.py:\d+: .*read it before optimizer.step"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()
        _ = kit.model[0].hidden.detach().mean().item()


def trains_by_it(kit):
    """Penalty of features, as collected by hooks."""

    def criterion(out, y):
        return f.cross_entropy(out, y) + kit.model[0].hidden.square().mean()

    kit.criterion = criterion
    return kit.train_once()


def reads_it(kit):
    found = []
    for x, y in kit.train:
        loss = kit.criterion(kit.model(x), y)
        found += [kit.model[0].hidden.abs().mean().item(), kit.update(loss)]
    return found


@pytest.mark.parametrize("loop", [trains_by_it, reads_it], ids=lambda loop: loop.__name__)
def test_what_forward_has_kept_is_of_its_step(tmp_path, loop):
    beside(loop, tmp_path, Keeping())


class Mixture(nn.Module):
    """Network that returns a distribution, a container of tensors that is not known."""

    def __init__(self):
        super().__init__()
        self.shares, self.means = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        each = Normal(self.means(x), 0.5)
        return MixtureSameFamily(Categorical(logits=self.shares(x)), each)


def test_forward_returns_a_distribution(tmp_path):
    def loop(kit):
        kit.criterion = lambda found, y: -found.log_prob(y.double()).mean()
        return kit.train_once()

    beside(loop, tmp_path, Mixture())


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomalies_may_be_looked_for(tmp_path):
    def loop(kit):
        with torch.autograd.set_detect_anomaly(True):
            return kit.train_once()

    beside(loop, tmp_path)


@pytest.mark.parametrize("fast", [True, False])
def test_positive_and_negative_zero_are_different_constants(tmp_path, fast):
    """atan2 of a zero and -1 is pi with the sign of the zero."""

    def loop(kit):
        for step, (x, y) in enumerate(kit.train):
            zero = -0.0 if step % 3 == 2 else 0.0
            logits = kit.model(x)
            sizes = logits.detach().abs() + 1
            angles = torch.atan2(sizes * zero, -sizes)
            yield kit.update(kit.criterion(logits, y) + 0.01 * (logits * angles).sum())

    beside(loop, tmp_path, settings={"fast": fast})


class ComparesTensors(nn.Module):
    """Forward with branches on equality of tensors, as in kernels of GPyTorch."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        self.calls += 1
        out = self.inner(x)
        if torch.equal(x[:, 0].abs(), x[:, 0]):  # in some batches
            out = out.tanh()
        if torch.equal(self.calls, torch.tensor(5)) or x.equal(x[:2]):
            out = out * 2
        return out + 1 if torch.equal(self.inner.weight[0], self.inner.weight[1]) else out


@pytest.mark.parametrize("has_lists", [False, True])
def test_forward_branches_on_equal_tensors(tmp_path, has_lists):
    class Compared(Kit):
        def __init__(self, *layers):
            super().__init__(ComparesTensors())
            self.train.dataset.tensors[0][16:32, 0].abs_()

        def session(self, folder):
            session = super().session(folder)
            return cbtorch.Session([self.model], [self.optimizer]) if has_lists else session

    def loop(kit):
        found = []
        for _ in range(2):
            for x, y in kit.train:
                out = kit.model(x)
                found += [kit.update(kit.criterion(out, y)), torch.equal(out.argmax(1), y)]
        return found

    beside(loop, tmp_path, kit=Compared)
