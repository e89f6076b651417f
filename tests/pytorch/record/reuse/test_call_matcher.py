"""Recorded steps that match the calls of earlier ones, against steps dispatched by PyTorch."""

from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from csrun.pytorch.errors import CaptureError  # noqa: E402
from csrun.pytorch.lower.interpret import interpret, reader_of  # noqa: E402
from csrun.pytorch.record.compare import is_same  # noqa: E402
from csrun.pytorch.record.recorder import StepRecorder  # noqa: E402
from csrun.pytorch.record.reuse.call_matcher import CallMatcher  # noqa: E402
from csrun.pytorch.record.reuse.operator_cache import CachedOperators  # noqa: E402
from csrun.pytorch.step.loop_calls import Calls  # noqa: E402

UNTIL_KNOWN = 3  # steps; the backward pass of the second is known, and so are the calls of it
PLACES = 9  # of the step, in which another may do something else
torch.manual_seed(0)
BATCH = torch.randn(4, 6), torch.randint(3, (4,))


class Network(nn.Module):
    """Views, writes into tensors and views, statistics, a constant, and reads of values."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.norm = nn.Linear(6, 8), nn.Linear(4, 3), nn.BatchNorm1d(8)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("places", torch.arange(4))

    def forward(self, x, change):
        x = change(0, x)
        h = change(1, self.norm(self.first(x)))
        left, right = h.chunk(2, dim=1)
        both = change(2, torch.cat([left, right.relu() * self.scale]))
        both = both.reshape(2, 4, 4)
        seen = change(3, both[0, :, 1:3])
        both = both.clone().mul_(0.5)
        if both.sum().item() > 1e9:
            both = both * 2
        change(4, both)
        mask = torch.tensor([1.0, 0.0, 2.0, 1.0])
        out = (both * mask).sum(0)[:, self.places] + seen.mean()
        return change(5, self.last(out))


def same(place, tensor):
    return tensor


def step(model, batch, change=same, call=None):
    x, y = batch
    model.zero_grad()
    out = model(x, change) if call is None else call(model, (x, change), {})
    loss = change(6, f.cross_entropy(out, y))
    loss.backward()
    change(7, model.first.weight.grad)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    change(8, model.last.weight.grad)
    return loss


def recorded(model, known, change=same, follows=True):
    recorder = StepRecorder(model)
    recorder.reader, recorder.repeated.known = reader_of(recorder), known
    recorder.may_read_in_forward = True
    with recorder:
        batch = tuple(recorder.batch(BATCH))
        calls = Calls(recorder, lambda *given: None)

        def call(*given):
            with calls._within_model(True):
                return recorder.call_model(*given)

        with calls.follow() if follows else nullcontext(), calls:
            step(model, batch, change, call)
    return recorder.finish()


@pytest.fixture
def gone_back(monkeypatch):
    """Steps that matched known calls and then had to fall back."""
    found = []
    go_back = CallMatcher._fall_back

    def counted(followed):
        found.append(followed)
        go_back(followed)

    monkeypatch.setattr(CallMatcher, "_fall_back", counted)
    return found


def known_of(model, change=same):
    known = CachedOperators()
    for _ in range(UNTIL_KNOWN):
        recorded(model, known, change)
    return known


def check_same(one, other):
    """Assert that two recordings have equal operators and the same numbering of gradients."""
    goals = [[each.loss, *each.gradients.values(), *each.written.values()] for each in (one, other)]
    assert is_same(one, goals[0], other, goals[1])
    assert one.gradients == other.gradients
    assert one.first_gradients == other.first_gradients
    assert one.written == other.written
    assert [leaf.name for leaf in one.leaves] == [leaf.name for leaf in other.leaves]
    assert one.counters == other.counters
    assert [read.value for read in one.reads] == [read.value for read in other.reads]


def check_numbers(model, recording, change=same):
    """Assert that gradients are PyTorch's."""
    found = interpret(recording, recording.gradients.values())
    step(model, BATCH, change)
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            assert name not in recording.gradients
            continue
        ours = found[recording.gradients[name]]
        torch.testing.assert_close(ours, parameter.grad, rtol=1e-6, atol=1e-7, msg=name)
    model.zero_grad()


def test_a_followed_step_is_recorded_as_one_that_pytorch_runs(gone_back, monkeypatch):
    model = Network()
    known = known_of(model)
    plain = recorded(model, CachedOperators(), follows=False)
    dispatched = []
    dispatch = StepRecorder.__torch_dispatch__

    def counted(recorder, func, types, args=(), kwargs=None):
        dispatched.append(func)
        return dispatch(recorder, func, types, args, kwargs)

    monkeypatch.setattr(StepRecorder, "__torch_dispatch__", counted)
    again = recorded(model, known)
    assert not gone_back
    assert torch.ops.aten.addmm.default not in dispatched
    check_same(plain, again)
    check_numbers(model, again)


@pytest.mark.parametrize("place", range(PLACES))
def test_a_step_may_diverge_from_known_calls_anywhere(gone_back, place):
    """All calls before the divergence are then dispatched."""

    def change(now, tensor):
        if now != place:
            return tensor
        return tensor.mul_(0.5) if now in (4, 7, 8) else tensor * 0.5

    model = Network()
    known = known_of(model)
    plain = recorded(model, CachedOperators(), change, follows=False)
    again = recorded(model, known, change)
    assert len(gone_back) == 1
    check_same(plain, again)
    check_numbers(model, again, change)


def test_steps_that_take_turns_are_all_followed(gone_back):
    def halved(now, tensor):
        return tensor * 0.5 if now == 2 else tensor

    model = Network()
    known = known_of(model)
    for _ in range(UNTIL_KNOWN):
        recorded(model, known, halved)
    gone_back.clear()
    plain = [recorded(model, CachedOperators(), each, follows=False) for each in (same, halved)]
    again = [recorded(model, known, each) for each in (same, halved)]
    assert not gone_back
    for one, other in zip(plain, again, strict=True):
        check_same(one, other)


def test_a_write_into_a_view_of_a_followed_value(gone_back):
    def write(now, tensor):
        if now == 2:
            tensor[1:3, 0] = 0.0
        return tensor

    model = Network()
    known = known_of(model)
    again = recorded(model, known, write)
    assert len(gone_back) == 1
    check_numbers(model, again, write)


class Tripled(torch.autograd.Function):
    """Function with its own gradient."""

    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


@pytest.mark.parametrize("other", [Tripled.apply, torch.no_grad()(lambda x: x * 1.0)])
def test_autograd_sees_what_the_operators_do_not_tell(gone_back, other):
    def once(now, tensor):
        return tensor * 1.0 if now == 2 else tensor

    def changed(now, tensor):
        return other(tensor) if now == 2 else tensor

    model = Network()
    known = known_of(model, once)
    again = recorded(model, known, changed)
    assert len(gone_back) == 1
    check_numbers(model, again, changed)


def test_the_loop_may_ask_what_autograd_knows(gone_back):
    seen = []

    def look(now, tensor):
        if now == 5:
            seen.append((tensor.requires_grad, tensor.is_leaf, type(tensor.grad_fn).__name__))
        return tensor

    model = Network()
    known = known_of(model)
    recorded(model, known, look)
    assert seen == [(True, False, "AddmmBackward0")]
    assert len(gone_back) == 1


def test_a_constant_may_have_other_numbers(gone_back):
    """The program takes its values, which calls do not depend on."""
    factor = torch.tensor(0.5)

    def scaled(now, tensor):
        return tensor * factor if now == 2 else tensor

    model = Network()
    known = known_of(model, scaled)
    factor = torch.tensor(0.25)
    again = recorded(model, known, scaled)
    assert not gone_back
    check_numbers(model, again, scaled)


def test_an_operator_that_no_function_calls_is_refused_where_it_comes_late(gone_back):
    def other(now, tensor):
        if now == 5:
            with torch._C.DisableTorchFunction():  # as in torch.jit.script
                return tensor * 2
        return tensor

    model, known = Network(), CachedOperators()
    for _ in range(UNTIL_KNOWN + 1):
        recorded(model, known, other)
    assert not gone_back
    known = known_of(model)
    with pytest.raises(CaptureError, match=r"test_call_matcher.py:\d+: an operator that PyTorch"):
        recorded(model, known, other)
