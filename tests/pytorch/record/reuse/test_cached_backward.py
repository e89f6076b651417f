"""Backward passes reused from steps with the same forward."""

import gc
import weakref

import pytest
import torch
from support.recorded import supervised
from torch import nn

from csrun.pytorch.lower.interpret import interpret, reader_of
from csrun.pytorch.record.compare import is_same
from csrun.pytorch.record.recorder import StepRecorder
from csrun.pytorch.record.reuse.cached_backward import CachedBackward
from csrun.pytorch.record.reuse.operator_cache import CachedOperators

BATCH = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 2, 1, 0, 2])
STEP = supervised(nn.CrossEntropyLoss())
UNTIL_KNOWN = 2  # steps whose backward pass PyTorch runs


class Doubled(torch.autograd.Function):
    """User-defined function whose backward pass can change from call to call."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def hooked(x):
    y = x * 2
    y.register_hook(lambda gradient: gradient * 3)
    return y


def node_hooked(x):
    y = x * 2
    y.grad_fn.register_hook(lambda inputs, outputs: None)
    return y


def saved_through_hooks(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return x * x


class Network(nn.Module):
    """Two layers, with `change` called between them."""

    def __init__(self, change=lambda x: x * 2):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.change = nn.Linear(4, 6), nn.Linear(6, 3), change

    def forward(self, x):
        return self.second(self.change(self.first(x)).relu())


@pytest.fixture
def repeated(monkeypatch):
    """Backward passes that were reused."""
    found = []
    repeat = CachedBackward.repeat

    def counted(known, recorder):
        found.append(known)
        repeat(known, recorder)

    monkeypatch.setattr(CachedBackward, "repeat", counted)
    return found


def recorded(model, known, step=STEP):
    recorder = StepRecorder(model)
    recorder.reader, recorder.repeated.known = reader_of(recorder), known
    with recorder:
        step(model, tuple(recorder.batch(BATCH)))
    return recorder.finish()


def check_numbers(model, recording):
    """Assert that gradients are PyTorch's."""
    found = interpret(recording, recording.gradients.values())
    STEP(model, BATCH)
    for name, parameter in model.named_parameters():
        ours = found[recording.gradients[name]] if name in recording.gradients else None
        assert (ours is None) == (parameter.grad is None)
        assert ours is None or torch.equal(ours, parameter.grad), name
    model.zero_grad()


def test_the_third_equal_step_repeats_the_backward_pass(repeated):
    model, known = Network(), CachedOperators()
    first, *_, last = (recorded(model, known) for _ in range(UNTIL_KNOWN + 2))
    assert len(repeated) == 2
    goals = [[each.loss, *each.gradients.values()] for each in (first, last)]
    assert is_same(first, goals[0], last, goals[1])
    assert first.gradients == last.gradients
    check_numbers(model, last)


@pytest.mark.parametrize(
    "change", [Doubled.apply, hooked, node_hooked, saved_through_hooks], ids=lambda f: f.__name__
)
def test_a_backward_pass_with_python_of_the_users_is_run(repeated, change):
    model, known = Network(change), CachedOperators()
    for _ in range(UNTIL_KNOWN + 2):
        last = recorded(model, known)
    assert not repeated
    check_numbers(model, last)


@pytest.mark.parametrize("add", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_of_a_parameter_is_called_from_its_step_on(repeated, add):
    model, known, called = Network(), CachedOperators(), []
    for _ in range(UNTIL_KNOWN + 1):
        recorded(model, known)
    assert len(repeated) == 1
    getattr(model.first.weight, add)(lambda tensor: called.append(tensor))
    recorded(model, known)
    assert len(repeated) == 1
    assert called


def test_the_autograd_graph_decides_not_the_operators(repeated):
    """`detach` is not among the recorded operators."""
    is_detached = []
    model = Network(lambda x: (x.detach() if is_detached else x) * 2)
    known = CachedOperators()
    for _ in range(UNTIL_KNOWN + 1):
        recorded(model, known)
    assert len(repeated) == 1
    is_detached.append(True)
    last = recorded(model, known)
    assert len(repeated) == 1
    assert "first.weight" not in last.gradients
    check_numbers(model, last)


def test_a_frozen_parameter_has_no_gradient(repeated):
    model, known = Network(), CachedOperators()
    for _ in range(UNTIL_KNOWN + 1):
        recorded(model, known)
    model.first.weight.requires_grad_(False)
    last = recorded(model, known)
    assert len(repeated) == 1
    assert set(last.gradients) == {"first.bias", "second.weight", "second.bias"}
    check_numbers(model, last)


def test_graphs_that_take_turns_are_each_known(repeated):
    turns = []
    model, known = Network(lambda x: x * 2 if len(turns) % 2 else x + 1), CachedOperators()
    for _ in range(2 * UNTIL_KNOWN + 4):
        last = recorded(model, known)
        check_numbers(model, last)
        turns.append(last)
    assert len(repeated) == 4


def test_options_of_backward_are_pytorchs(repeated):
    def retained(model, batch):
        inputs, labels = batch
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward(retain_graph=True)

    model, known = Network(), CachedOperators()
    for _ in range(UNTIL_KNOWN + 2):
        recorded(model, known, retained)
    assert not repeated


def test_a_write_into_a_slice_of_a_reused_gradient_is_recorded(repeated):
    """The gradient of a matrix product is a view of another value."""

    def edited(model, batch):
        STEP(model, batch)
        model.first.weight.grad[0].mul_(2)

    model, known = Network(), CachedOperators()
    first, *_, last = (recorded(model, known, edited) for _ in range(UNTIL_KNOWN + 1))
    assert len(repeated) == 1
    assert first.has_operators_of(last)
    assert first.gradients == last.gradients
    found = interpret(last, last.gradients.values())
    edited(model, BATCH)
    for name, parameter in model.named_parameters():
        assert torch.equal(found[last.gradients[name]], parameter.grad), name


def test_a_repeated_step_leaks_no_autograd_graph(repeated):
    """Backward does not free it, and the garbage collector does not see its cycles."""
    model, known, recorders = Network(), CachedOperators(), []
    for _ in range(UNTIL_KNOWN + 1):
        recorder = StepRecorder(model)
        recorder.reader, recorder.repeated.known = reader_of(recorder), known
        with recorder:
            STEP(model, tuple(recorder.batch(BATCH)))
        recorder.finish()
        recorders.append(weakref.ref(recorder))
        del recorder
    gc.collect()
    assert len(repeated) == 1
    assert not any(recorder() for recorder in recorders)
