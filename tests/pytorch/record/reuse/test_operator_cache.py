"""Operators reused from the last recording of a step."""

import pytest
import torch
from support.recorded import supervised
from torch import nn

from csrun.pytorch.lower.interpret import interpret, reader_of
from csrun.pytorch.record.compare import is_same
from csrun.pytorch.record.recorder import StepRecorder
from csrun.pytorch.record.reuse.operator_cache import CachedOperators


class Network(nn.Module):
    """Two layers, with `change` called between them."""

    def __init__(self, change=lambda x: x * 2):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.change = nn.Linear(4, 6), nn.Linear(6, 3), change

    def forward(self, x):
        return self.second(self.change(self.first(x)).relu())


BATCH = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 2, 1, 0, 2])
STEP = supervised(nn.CrossEntropyLoss())


def recorded(model, known=None, batch=BATCH):
    """Record a step, after an earlier one."""
    recorder = StepRecorder(model)
    recorder.reader, recorder.repeated.known = reader_of(recorder), known or CachedOperators()
    with recorder:
        STEP(model, tuple(recorder.batch(batch)))
    return recorder.finish(), recorder.repeated.known


def taken_over(first, second):
    """Names of a recording's operators that are objects of an earlier one."""
    pairs = zip(first.operators, second.operators, strict=False)
    return [now.name for was, now in pairs if was is now]


def check_numbers(model, recording, batch=BATCH):
    """Assert that gradients are PyTorch's."""
    found = interpret(recording, recording.gradients.values())
    STEP(model, batch)
    for name, parameter in model.named_parameters():
        ours = found[recording.gradients[name]] if name in recording.gradients else None
        assert (ours is None) == (parameter.grad is None)
        assert ours is None or torch.equal(ours, parameter.grad), name
    model.zero_grad()


def goals(recording):
    return [recording.loss, *recording.gradients.values()]


def test_a_step_takes_over_the_operators_of_an_equal_one():
    model = Network()
    first, calls = recorded(model)
    again, _ = recorded(model, calls)
    assert len(taken_over(first, again)) == len(again.operators)
    assert is_same(first, goals(first), again, goals(again))
    check_numbers(model, again)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x * 3,
        lambda x: x * 2.0,
        lambda x: x + 2,
        lambda x: x.detach() * 2,
        lambda x: x,
        lambda x: torch.cat([x, x], 1)[:, :6] * 2,
        lambda x: x.mul_(2),
    ],
)
def test_another_operator_is_recorded_anew(change):
    _, calls = recorded(Network())
    model = Network(change)
    alone, _ = recorded(model)
    after, _ = recorded(model, calls)
    assert is_same(alone, goals(alone), after, goals(after))
    assert [op.keywords for op in alone.operators] == [op.keywords for op in after.operators]
    check_numbers(model, after)


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_the_default_type_is_that_of_the_step(dtypes):
    model = Network(lambda x: x * (torch.ones_like(x, dtype=torch.int64) / 3).float())
    before, calls = torch.get_default_dtype(), None
    try:
        for dtype in dtypes:
            torch.set_default_dtype(dtype)
            step, calls = recorded(model, calls)
            quotient = next(op for op in step.operators if op.name.startswith("aten.div"))
            assert step.kind(quotient.results[0]).dtype is dtype
    finally:
        torch.set_default_dtype(before)


def test_batches_may_be_slices_of_one_tensor():
    model, data = Network(), torch.cat([BATCH[0] + 1, BATCH[0]])
    first, calls = recorded(model, batch=(data[:5], BATCH[1]))
    again, _ = recorded(model, calls, (data[5:], BATCH[1]))
    assert len(taken_over(first, again)) == len(again.operators)
    check_numbers(model, again)


def test_a_batch_of_another_shape_is_recorded_anew():
    model = Network()
    _, calls = recorded(model)
    short = BATCH[0][:3], BATCH[1][:3]
    again, _ = recorded(model, calls, short)
    assert again.kind(again.operators[-1].results[0]).shape[0] != 5
    check_numbers(model, again, short)


def test_an_operator_of_another_layer_has_its_scope():
    def moved(model):
        inner, model.change = model.change, nn.Sequential(nn.ReLU())
        model.change.forward = inner
        return model

    first, calls = recorded(Network())
    again, _ = recorded(moved(Network()), calls)
    scopes = [{op.scope for op in each.operators} for each in (first, again)]
    assert "change" not in scopes[0]
    assert "change" in scopes[1]


def test_views_written_in_place_follow_the_write():
    def written(x):
        y = x * 2
        row = y[1:3]
        y[2] = 0
        row.mul_(3)
        return y

    model = Network(written)
    first, calls = recorded(model)
    again, _ = recorded(model, calls)
    assert is_same(first, goals(first), again, goals(again))
    assert taken_over(first, again)
    check_numbers(model, again)
