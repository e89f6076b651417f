"""Loops that are wrong, or look so, and what a Session says of them: file, line and remedy."""

import re
from traceback import walk_tb

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from torch import nn, optim  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import CsrunError, UsageError  # noqa: E402
from csrun.pytorch.operators import EMITTERS, Emission, emit_operator  # noqa: E402
from csrun.pytorch.operators.base import Unsupported  # noqa: E402
from csrun.pytorch.record.recorder import StepRecorder  # noqa: E402

STEPS = 8
PLACE = r"test_call_order\.py:{line}: "


class Network(nn.Module):
    """Two layers, and one that forward leaves out."""

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
        return torch.ones(6 if index < 40 else 7, dtype=torch.float64), index % 4


class Script:
    """A model and its loop, of which `step` computes one batch."""

    def __init__(self):
        torch.manual_seed(3)
        self.model = Network().double()
        self.optimizer = optim.SGD(self.model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
        self.criterion = nn.CrossEntropyLoss()
        x, y = torch.randn(8 * STEPS, 6, dtype=torch.float64), torch.arange(8 * STEPS) % 4
        self.loader = DataLoader(TensorDataset(x, y), 8)

    def loss(self, x, y):
        self.optimizer.zero_grad()
        return self.criterion(self.model(x), y)

    def loop(self, step):
        for number, (x, y) in enumerate(self.loader, 1):
            step(self, number, x, y)

    def session(self, folder):
        cbtorch.initialize(model_dir=folder)
        self.model = cbtorch.module(self.model)
        self.loader = cbtorch.dataloader(self.loader)  # here
        return cbtorch.Session(self.model, self.optimizer, self.criterion, mode="train")


def line_of(function):
    """The line with the mark in this file."""
    first = function.__code__.co_firstlineno
    with open(__file__) as file:
        lines = file.read().splitlines()
    return next(n for n in range(first, len(lines) + 1) if lines[n - 1].endswith("# here"))


def plain(script, number, x, y):
    script.loss(x, y).backward()
    script.optimizer.step()


def keeps_the_graph(script, number, x, y):
    script.loss(x, y).backward(retain_graph=True)
    script.optimizer.step()


def reads_before_the_step(script, number, x, y):
    loss = script.loss(x, y)
    script.read = [*getattr(script, "read", []), loss.item()]
    loss.backward()
    script.optimizer.step()


def two_backwards_later(script, number, x, y):
    loss = script.loss(x, y)
    loss.backward()
    if number == 6:
        loss.backward()  # here
    script.optimizer.step()


def backward_behind_the_step(script, number, x, y):
    loss = script.loss(x, y)
    loss.backward()
    script.optimizer.step()
    if number == 6:
        script.optimizer.zero_grad()
        loss.backward()  # here


def another_gradient_later(script, number, x, y):
    loss = script.loss(x, y)
    if number == 6:
        loss.backward(torch.tensor(2.0, dtype=torch.float64))  # here
    loss.backward()
    script.optimizer.step()


def a_gradient_of_the_weights_alone(script, number, x, y):
    script.loss(x, y).backward()
    if number == 6:
        weight = script.model.outer.weight
        weight.grad = None
        weight.square().sum().backward()
    script.optimizer.step()  # here


def frozen_behind_the_batch(script, number, x, y):
    if number == 6:
        script.model.inner.weight.requires_grad_(requires_grad=False)
    script.optimizer.zero_grad()
    loss = script.criterion(script.model(x), y)  # here
    loss.backward()
    script.optimizer.step()


@pytest.mark.parametrize("step", [plain, keeps_the_graph, reads_before_the_step])
def test_a_loop_that_only_looks_wrong_is_pytorchs(tmp_path, step):
    ours, theirs = Script(), Script()
    with ours.session(tmp_path):
        ours.loop(step)
    theirs.loop(step)
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    if step is reads_before_the_step:
        assert len(ours.read) == STEPS
        torch.testing.assert_close(ours.read, theirs.read, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (two_backwards_later, r"backward\(\) must be called once for each batch"),
        (backward_behind_the_step, r"backward\(\) must be called once for each batch"),
        (another_gradient_later, r"backward\(\) takes no gradient"),
        (a_gradient_of_the_weights_alone, "the gradient of outer.weight must come from this"),
        (frozen_behind_the_batch, r".* or requires_grad, has changed since the batch"),
    ],
)
def test_gradients_that_are_others_in_step_six_are_refused(tmp_path, step, said):
    script, place = Script(), PLACE.format(line=line_of(step))
    with pytest.raises(UsageError, match=place + said), script.session(tmp_path):
        script.loop(step)


def test_batches_of_two_loaders_in_one_step_are_refused(tmp_path):
    script = Script()
    said = r"a batch is used after the next one was taken, .* zip\(a, b\): .*StackDataset"
    session = script.session(tmp_path)
    other = cbtorch.dataloader(DataLoader(TensorDataset(torch.zeros(64, 2)), 8))
    with pytest.raises(UsageError, match=r"test_call_order\.py:\d+: " + said), session:
        for number, ((x, y), _) in enumerate(zip(script.loader, other, strict=True)):
            plain(script, number, x, y)


def test_a_batch_with_a_tensor_that_all_samples_share_is_refused(tmp_path):
    def collate(samples):
        return *torch.utils.data.default_collate(samples), torch.ones(20, dtype=torch.float64)

    script = Script()
    script.loader = DataLoader(script.loader.dataset, 8, collate_fn=collate)
    said = r"a row for each of its samples, got tensors of 8, 8, 20: .* a buffer of the model"
    with (
        pytest.raises(UsageError, match=r"test_call_order.py:\d+: .*" + said),
        script.session(tmp_path),
    ):
        for x, y, scale in script.loader:
            script.loss(x, y).mul(scale[0]).backward()
            script.optimizer.step()


def test_batches_that_change_their_shape_are_refused_by_the_loaders_line(tmp_path):
    script = Script()
    script.loader = DataLoader(Ragged(), 8)
    said = r"a row of part 0 had shape \[6\] and now has \[7\]: have collate_fn pad"
    place = PLACE.format(line=line_of(Script.session))
    with pytest.raises(CsrunError, match=place + ".*" + said), script.session(tmp_path):
        script.loop(plain)


def test_a_parameter_without_a_gradient_stays_and_is_told_of(tmp_path, caplog):
    script = Script()
    before = script.model.unused.weight.clone()
    with script.session(tmp_path):
        script.loop(plain)
    assert torch.equal(script.model.unused.weight, before)
    (said,) = (line for line in caplog.messages if "no gradient for" in line)
    assert re.match(r".*test_call_order\.py:\d+: ", said)
    assert "unused.weight, unused.bias" in said


def test_a_criterion_of_the_loops_own_is_pytorchs(tmp_path):
    def step(script, number, x, y):
        script.optimizer.zero_grad()
        wanted = nn.functional.one_hot(y, 4).to(x.dtype)
        nn.functional.mse_loss(script.model(x), wanted).backward()
        script.optimizer.step()

    ours, theirs = Script(), Script()
    with ours.session(tmp_path):
        ours.loop(step)
    theirs.loop(step)
    torch.testing.assert_close(ours.model.inner.weight, theirs.model.inner.weight)


def test_a_failure_that_the_loop_catches_is_raised_again(tmp_path):
    """What was queued with it is lost: a loop that went on would train without these steps."""
    script, caught = Script(), {}
    script.loader.dataset.tensors[1][44] = 9

    def step(script, number, x, y):
        try:
            plain(script, number, x, y)
            script.model.inner.weight.sum().item()
        except CsrunError as error:
            caught[number] = str(error)

    with (
        pytest.raises(CsrunError, match=r"batch 5, row 4 .* must be in 0\.\.3, got 9"),
        script.session(tmp_path),
    ):
        script.loop(step)
    assert list(caught) == [6, 7, 8]
    assert len(set(caught.values())) == 1


def does_not_fit(script, number, x, y):
    script.loss(torch.cat([x, x], 1), y).backward()  # here


def does_not_fit_outside(script, number, x, y):
    script.model(x).expand_as(x).sum().backward()  # here


def has_an_error_of_its_own(script, number, x, y):
    plain(script, number, x, y)
    raise KeyError("of the user's")


@pytest.mark.parametrize(
    ("step", "kind", "said"),
    [
        (
            does_not_fit,
            UsageError,
            r"test_call_order\.py:{forward}: layer inner: PyTorch raises RuntimeError: .*8, 12",
        ),
        (
            does_not_fit_outside,
            UsageError,
            PLACE + r"PyTorch raises RuntimeError: .*must match the existing size",
        ),
        (has_an_error_of_its_own, KeyError, "of the user's"),
    ],
)
def test_what_pytorch_refuses_in_a_recorded_step_is_said_with_line_and_layer(
    tmp_path, step, kind, said
):
    forward = Network.forward.__code__.co_firstlineno + 1
    place = said.format(line=line_of(step) if "{line}" in said else 0, forward=forward)
    script = Script()
    with pytest.raises(kind, match=place), script.session(tmp_path):
        script.loop(step)


def bug(*given, **options):
    raise IndexError("of csrun's own")


def test_a_bug_of_an_emitter_keeps_its_traceback_and_notes_the_line(tmp_path, monkeypatch):
    monkeypatch.setitem(EMITTERS, "aten.tanh.default", bug)
    place = rf"test_call_order\.py:{Network.forward.__code__.co_firstlineno + 1}: aten.tanh.default"
    script = Script()
    with pytest.raises(IndexError, match="of csrun's own") as error, script.session(tmp_path):
        script.loop(plain)
    assert re.search(place, error.value.__notes__[0]), error.value.__notes__
    assert any(frame.f_code is bug.__code__ for frame, _ in walk_tb(error.value.__traceback__))


def test_a_bug_of_the_recorder_keeps_its_traceback_and_notes_line_and_layer(tmp_path, monkeypatch):
    monkeypatch.setattr(StepRecorder, "_storages_of", None)  # which is called
    place = rf"test_call_order\.py:{Network.forward.__code__.co_firstlineno + 1}: layer inner: "
    script = Script()
    with pytest.raises(TypeError, match="not callable") as error, script.session(tmp_path):
        script.loop(plain)
    assert re.search(place, error.value.__notes__[0]), error.value.__notes__


def test_arguments_that_pytorch_refuses_as_well_are_refused_in_its_words(tmp_path):
    def step(script, number, x, y):
        nn.functional.cross_entropy(script.model(x), y.tolist()).backward()

    script, place = Script(), rf"test_call_order\.py:{step.__code__.co_firstlineno + 1}: "
    said = place + r"PyTorch raises TypeError: cross_entropy_loss\(\).*must be Tensor"
    with pytest.raises(UsageError, match=said), script.session(tmp_path):
        script.loop(step)


def test_an_option_that_an_emitter_does_not_have_is_refused():
    emission = Emission(None, "float32")
    with pytest.raises(Unsupported, match=r"this form .*'saturates'"):
        emit_operator(emission, "aten.tanh.default", (None,), {"saturates": True})
