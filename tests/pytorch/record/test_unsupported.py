"""Unsupported operations: refused with the user's file and line, and a remedy."""

import re

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import record  # noqa: E402
from support.torch_loops import Kit  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402
from csrun.cirh.algorithms import SgdAttr  # noqa: E402
from csrun.pytorch.errors import CaptureError  # noqa: E402
from csrun.pytorch.lower.interpret import reader_of  # noqa: E402
from csrun.pytorch.lower.to_cirh import module_of  # noqa: E402
from csrun.pytorch.record.compare import difference  # noqa: E402
from csrun.pytorch.record.recorder import StepRecorder  # noqa: E402
from csrun.pytorch.record.recording import LeafSource  # noqa: E402


class Model(nn.Module):
    """Linear layer with a test's function of its result."""

    def __init__(self, then):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.then = then

    def forward(self, x):
        return self.then(self.linear(x))


def step(model, batch):
    model.zero_grad()
    loss = f.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    return loss


def batch():
    return torch.randn(6, 4), torch.arange(6) % 3


def branches(x):
    return x * 2 if x.sum() > 0 else x  # here


def loops(x):
    for _ in range(int(x.abs().max())):  # here
        x = x + 1
    return x


def masks(x):
    return x[x > 0].sum() + x  # here


def writes_into_another(x):
    ROWS[0] = x[0]  # here
    return x + ROWS


def draws(x):
    return x + torch.randn(6, 3)  # here


def draws_alike(x):
    return x * torch.bernoulli(x.sigmoid())  # here


def counts_itself(x):
    return x * x.unique().numel()  # here


ROWS = torch.zeros(6, 3)
FORWARD = {
    branches: "forward reads the value of a traced tensor.*use torch.where",
    loops: "forward reads the value of a traced tensor",
    masks: "shape of its result depends on the data.*use torch.where, or multiply by the mask",
    writes_into_another: "writes a traced value into a tensor that forward has not made",
    draws: "computes with random numbers that it draws, or is not called from step 1 on",
    draws_alike: "computes with random numbers that it draws, or is not called from step 1 on",
    counts_itself: "shape of its result depends on the data",
}


def line_of(function):
    """Line number of the mark in this file."""
    code = function.__code__
    with open(__file__) as file:
        lines = file.read().splitlines()
    at = next(n for n in range(code.co_firstlineno, len(lines) + 1) if "# here" in lines[n - 1])
    return f"{re.escape(__file__)}:{at}: "


def refused(model, step, message):
    with pytest.raises(CaptureError, match=re.compile(message, re.DOTALL)):
        module_of(record(model, batch(), step), {})


@pytest.mark.parametrize("function", FORWARD, ids=lambda function: function.__name__)
def test_a_forward_is_refused_by_its_line(function):
    refused(Model(function), step, line_of(function) + ".*" + FORWARD[function])


def two_backwards(model, batch):
    model.zero_grad()
    out = model(batch[0])
    f.cross_entropy(out, batch[1]).backward(retain_graph=True)
    out.mean().backward()  # here


def backward_of_several(model, batch):
    model(batch[0]).backward(torch.ones(6, 3))  # here


def backward_from_elsewhere(model, batch):
    out = model(batch[0]).sum()
    torch.autograd.backward([out])  # here


def accumulates(model, batch):
    model.linear.weight.grad = torch.ones(3, 4)
    f.cross_entropy(model(batch[0]), batch[1]).backward()  # here


def writes_to_a_weight(model, batch):
    with torch.no_grad():
        model.linear.weight.mul_(0.9)  # here


def steps_another_optimizer(model, batch):
    f.cross_entropy(model(batch[0]), batch[1]).backward()
    torch.optim.SGD(model.parameters(), 0.1).step()  # here


def writes_to_the_batch(model, batch):
    batch[0].mul_(0.9)  # here


def writes_to_the_data_of_a_weight(model, batch):
    model.linear.weight.data.mul_(0.9)  # here


LOOPS = {
    writes_to_the_data_of_a_weight: "writes into parameter linear.weight",
    two_backwards: "backward.. is called twice in this step, first in .*: add the losses",
    backward_of_several: "needs one element, got a tensor of shape .6, 3.",
    backward_from_elsewhere: "outside loss.backward.*, or give the Session lists",
    accumulates: "linear.weight already has a gradient.*optimizer.zero_grad",
    writes_to_a_weight: "writes into parameter linear.weight, which the step may only read",
    steps_another_optimizer: "writes into parameter .* give the Session the optimizer that",
    writes_to_the_batch: "writes into input batch_0",
}


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_loop_is_refused_by_its_line(loop):
    refused(Model(lambda x: x), loop, line_of(loop) + ".*" + LOOPS[loop])


def test_gradients_of_a_step_before_are_refused():
    model = Model(lambda x: x)
    first, second = StepRecorder(model), StepRecorder(model)
    given = batch()
    with first:
        step(model, first.batch(given))
    with second, pytest.raises(CaptureError, match=r"test_unsupported.py:\d+: .*zero_grad"):
        x, y = second.batch(given)
        f.cross_entropy(model(x), y).backward()


def test_a_value_is_read_in_the_loop():
    model = Model(lambda x: x)
    recorder = StepRecorder(model)
    recorder.reader = reader_of(recorder)
    x, y = batch()
    with recorder:
        traced, labels = recorder.batch((x, y))
        loss = f.cross_entropy(model(traced), labels)
        read = (
            loss.item(),
            f"{loss:.4f}",
            float(loss.detach() * 2),
            bool(loss > 0),
            loss.detach().numpy(),
        )
        shown = repr(loss)
    expected = f.cross_entropy(model(x), y).item()
    assert read == (expected, f"{expected:.4f}", expected * 2, True, expected)
    assert shown.startswith(f"tensor({expected:.4f}")
    assert {int(read.line.rpartition(":")[2]) for read in recorder.reads}
    assert loss.detach().item() == expected  # after the step, too


def test_a_part_of_a_weight_from_before_the_step_is_refused():
    model = Model(lambda x: x)
    row = model.linear.weight.detach()[0, 0]
    model.then = lambda x: x * row
    refused(model, step, r"test_unsupported.py:\d+: a tensor is a view of linear.weight")


def test_the_data_of_a_weight_is_the_weight():
    model = Model(lambda x: x)
    model.then = lambda x: x @ model.linear.weight.data @ model.linear.weight.detach().t()
    recording = record(model, batch(), step)
    assert not recording.of(LeafSource.CONSTANT)


def test_a_constant_that_changes_in_the_step_is_two():
    numbers = torch.ones(3)

    def twice(x):
        x = x + numbers
        numbers.mul_(5)
        return x - numbers

    recording = record(Model(twice), batch(), step)
    found = [leaf.tensor.tolist() for leaf in recording.of(LeafSource.CONSTANT)]
    assert found == [[1, 1, 1], [5, 5, 5]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids: ids.mul_(2), "writes into integer buffer ids.* make it a buffer of floats"),
        (lambda ids: ids.add_(1), "forward reads the integer buffer ids, which it counts up"),
    ],
)
def test_a_buffer_of_integers_that_changes_is_refused(change, message):
    model = Model(lambda x: x)
    model.register_buffer("ids", torch.arange(3))

    def forward(x):
        change(model.ids)
        return x[:, model.ids]

    model.then = forward
    refused(model, step, message)


def test_a_switch_that_forward_sets_is_refused():
    model = Model(lambda x: x)
    model.register_buffer("is_ready", torch.tensor(False))

    def forward(x):
        model.is_ready.fill_(True)
        return x

    model.then = forward
    refused(model, step, "writes into boolean buffer is_ready.*: set it in the loop, between two")


def test_dropout_that_is_computed_again_is_refused():
    def again(x):
        return torch.utils.checkpoint.checkpoint(f.dropout, x, use_reentrant=False)  # here

    refused(Model(again), step, "would draw another mask")


def test_inference_mode_is_refused():
    recorder, model = StepRecorder(nn.Linear(4, 3)), nn.Linear(4, 3)
    x, _ = recorder.batch(batch())
    message = r"test_unsupported.py:\d+: .*use torch.no_grad"
    with recorder, torch.inference_mode(), pytest.raises(CaptureError, match=message):
        model(x)


def test_a_parameter_without_gradient_does_not_move():
    model = Model(lambda x: x)
    model.unused = nn.Linear(2, 2)
    model.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    model.then = lambda x: x + model.frozen
    recording = record(model, batch(), step)
    assert set(recording.gradients) == {"linear.weight", "linear.bias"}
    assert recording.without_gradient == ("unused.weight", "unused.bias")
    names = [name for name, _ in model.named_parameters()]
    module = module_of(recording, dict.fromkeys(names, SgdAttr.of(0.1)))
    updated = [op for op in module.ops if op.name == "cirh.apply_gradient"]
    assert len(updated) == 2


class Changing:
    """Step whose `change` differs in each recording."""

    def __init__(self, change):
        self.change, self.count = change, 0

    def __call__(self, model, batch):
        self.count += 1
        model.zero_grad()
        out = self.change(self, model, *batch)
        f.cross_entropy(out, batch[1]).backward()


def flips_a_flag(self, model, x, y):
    model.train(self.count == 1)
    return f.dropout(model(x), 0.5, model.training)


def scales(self, model, x, y):
    return model(x) * (0.5**self.count)


def adds(self, model, x, y):
    return model(x) + torch.tensor([1.0, 2.0, float(self.count)])


def goes_on(self, model, x, y):
    out = model(x)
    return out if self.count == 1 else out.relu()


def freezes(self, model, x, y):
    model.linear.bias.requires_grad_(self.count == 1)
    return model(x)


CHANGES = {
    flips_a_flag: r"test_unsupported.py:\d+: csrun::cross_entropy runs where step 1 ran csrun::"
    r"dropout \(.*test_unsupported.py:\d+",
    scales: r"test_unsupported.py:\d+: aten.mul.Tensor has different arguments than in step 1",
    adds: r"test_unsupported.py:\d+: a tensor created here has different values than in step 1",
    goes_on: r"test_unsupported.py:\d+: aten.relu.default runs where step 1 ran csrun::cross",
    freezes: r"test_unsupported.py:\d+: aten.t.default runs where step 1 ran aten.sum",
}


def compared(first, again):
    of = ([r.loss, *r.gradients.values()] for r in (first, again))
    return difference(first, next(of), again, next(of))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_graph_that_changes_is_told_by_its_line(change):
    model, step = Model(lambda x: x), Changing(change)
    first, again = (record(model, batch(), step) for _ in range(2))
    found = compared(first, again)
    assert found is not None
    assert re.search(CHANGES[change], found), found


def test_a_graph_that_does_not_change_passes():
    model = Model(lambda x: x + torch.arange(3))
    assert compared(*(record(model, batch(), step) for _ in range(2))) is None


def test_a_padded_evaluation_by_nested_tensors_is_refused(tmp_path):
    layer = nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1)
    kit = Kit(encoder)
    kit.model.forward = lambda x: kit.model[0](x[:, None], src_key_padding_mask=x[:, :1] > 9)[:, 0]
    said = r"call torch.backends.mha.set_fastpath_enabled\(False\)"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path), torch.no_grad():
        kit.model.eval()
        for x, _ in kit.val:
            kit.model(x).sum().item()
