"""Steps of users' loops: recorded, interpreted, compiled; equal to PyTorch's own."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import Beside, record, supervised  # noqa: E402
from support.transformers_of_users import Bert, Gpt, language_step  # noqa: E402
from torch import nn  # noqa: E402

from csrun.base.mode import ExecutionMode  # noqa: E402
from csrun.pytorch.record.recording import LeafSource  # noqa: E402


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.ReLU(), nn.Dropout(0.0), nn.Linear(5, 3))


def batch():
    torch.manual_seed(1)
    return torch.randn(6, 2, 4), torch.tensor([0, 1, 2, 1, 0, -100])


@pytest.mark.parametrize("mode", ExecutionMode)
def test_a_step_is_pytorchs(tmp_path, mode):
    Beside(mlp(), batch(), supervised(nn.CrossEntropyLoss()), tmp_path, mode).check()


def test_weights_after_steps_of_sgd_are_pytorchs(tmp_path):
    model, step = mlp(), supervised(nn.CrossEntropyLoss())
    beside = Beside(model, batch(), step, tmp_path)
    machine = beside.machine()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        beside.ours(machine)
        step(model, batch())
        optimizer.step()
    for name, parameter in model.named_parameters():
        ours = torch.from_numpy(machine.state[name.replace(".", "/")])
        torch.testing.assert_close(ours, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_a_recording_knows_layers_lines_and_leaves():
    recording = record(mlp(), batch(), supervised(nn.CrossEntropyLoss()))
    scopes = {op.name: op.scope for op in recording.operators}
    assert scopes["aten.relu.default"] == scopes["aten.threshold_backward.default"] == "2"
    assert scopes["aten.addmm.default"] == "4"
    assert scopes["csrun::cross_entropy_backward"] == ""
    assert all("recorded.py:" in op.line for op in recording.operators)
    assert [leaf.name for leaf in recording.of(LeafSource.PARAMETER)] == [
        f"{layer}.{name}" for layer in (1, 4) for name in ("weight", "bias")
    ]
    assert [recording.kind(x.value).shape for x in recording.of(LeafSource.INPUT)] == [
        (6, 2, 4),
        (6,),
    ]


def test_parameters_are_the_users_own_again():
    model = mlp()
    record(model, batch(), supervised(nn.CrossEntropyLoss()))
    assert all(p.grad is None and type(p) is nn.Parameter for p in model.parameters())


@pytest.mark.parametrize("mode", ExecutionMode)
def test_a_gpt_with_a_tied_table_is_pytorchs(tmp_path, mode):
    torch.manual_seed(0)
    tokens, labels = torch.randint(0, 31, (4, 12)), torch.randint(0, 31, (4, 12))
    labels[0, :5] = -1
    beside = Beside(Gpt(), (tokens, labels), language_step, tmp_path, mode)
    beside.check()
    scopes = {op.scope for op in beside.recording.operators if op.is_backward}
    assert {"h/1/attn/qkv", "h/0/ln_2", "wte", "head"} <= scopes


def test_a_bert_with_a_padding_mask_is_pytorchs(tmp_path):
    torch.manual_seed(0)
    tokens = torch.randint(1, 31, (5, 12))
    tokens[2, 7:] = tokens[4, 3:] = 0
    batch = tokens, torch.tensor([0, 1, 2, 1, 0])
    Beside(Bert(), batch, supervised(nn.CrossEntropyLoss()), tmp_path).check()
