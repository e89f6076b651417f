"""Weights in the store: names, and sharded matrices."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

import contextlib  # noqa: E402

import numpy as np  # noqa: E402
from support.programs import Machine, options_of  # noqa: E402
from support.recorded import Beside, supervised  # noqa: E402
from support.torch_loops import Kit  # noqa: E402
from torch import nn  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402
from csrun.base.mode import ExecutionMode  # noqa: E402
from csrun.compiler import compile_model  # noqa: E402
from csrun.executable import tensors_of  # noqa: E402
from csrun.pytorch.weights.store_copies import StoredWeights  # noqa: E402
from csrun.records import checkpoints  # noqa: E402
from csrun.records.state_dict import names_in_state_dict  # noqa: E402
from csrun.records.torch_names import stored_name  # noqa: E402

B, T, V, D, UNITS, RATE = 4, 6, 61, 16, 48, 0.1


class Language(torch.nn.Module):
    """Embedding, two linear layers, and a head, tied or not."""

    def __init__(self, is_tied):
        super().__init__()
        self.table = torch.nn.Embedding(V, D)
        self.up, self.down = torch.nn.Linear(D, UNITS), torch.nn.Linear(UNITS, D)
        self.head = torch.nn.Linear(D, V, bias=not is_tied)
        if is_tied:
            self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.down(self.up(self.table(ids)).relu()))


def loss_of(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_step_in_parts_is_pytorchs(tmp_path, is_tied):
    torch.manual_seed(3)
    model, batch = Language(is_tied), tuple(torch.randint(0, V, (2, B, T)))
    beside = Beside(model, batch, supervised(loss_of), tmp_path)
    before = {stored_name(n): p.detach().numpy().copy() for n, p in model.named_parameters()}
    options = options_of(ExecutionMode.WEIGHT_STREAMING, max_group_bytes=1024, group_bytes=1)
    executable = compile_model(beside.module, tmp_path, options).executable
    cut = {p.part.tensor for p in executable.plan.parameters if p.part is not None}
    own = set() if is_tied else {"head/weight"}
    assert cut == {"table/weight", "up/weight", "down/weight"} | own
    assert max(np.prod(buffer.shape) for buffer in executable.plan.buffers) == B * T * UNITS
    machine = Machine(executable, {p.name: before[p.name] for p in tensors_of(executable.plan)})
    loss, _ = machine.train([x.numpy() for x in batch])
    weights = StoredWeights(machine.state)
    assert all(weights[name].is_contiguous() for name, _ in model.named_parameters())
    theirs, gradients = beside.theirs()
    assert loss == pytest.approx(theirs.item(), rel=1e-5)
    for name, gradient in gradients.items():
        expected = before[stored_name(name)] - RATE * gradient.numpy()
        np.testing.assert_allclose(machine.state[stored_name(name)], expected, rtol=2e-5, atol=2e-6)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        return torch.tanh(self.fc(x))


class Nested(nn.Module):
    """Names `encoder.fc` and `momentum.fc` end in `fc`; Adam has no slot called momentum."""

    def __init__(self):
        super().__init__()
        self.encoder, self.momentum = Encoder(), Encoder()
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(self.momentum(self.encoder(x)))


class KilledError(Exception):
    """Raised to end the script."""


def test_a_killed_loop_resumes_with_all_weights(tmp_path):
    def kit():
        made = Kit()
        made.model = Nested().double()
        made.optimizer = torch.optim.Adam(made.model.parameters(), 0.01)
        return made

    def kill(step):
        if step == 4:
            raise KilledError

    torch.manual_seed(7)
    first, ours, theirs = kit(), kit(), kit()
    for other in (ours, theirs):
        other.model.load_state_dict(first.model.state_dict())
    with contextlib.suppress(KilledError), first.session(tmp_path, save_checkpoints_steps=2):
        first.train_once(kill)
    with ours.session(tmp_path):
        found = ours.train_once()
    torch.testing.assert_close(found, theirs.train_once(), rtol=1e-6, atol=1e-7)
    for name, value in ours.model.state_dict().items():
        torch.testing.assert_close(value, theirs.model.state_dict()[name], rtol=1e-9, atol=1e-10)


def test_two_tensors_of_one_name_are_refused(tmp_path):
    """`weight` in the root and `model.weight` have the same name in the store."""
    made = Kit()
    made.model = nn.Module()
    made.model.weight, made.model.model = nn.Parameter(torch.ones(2, 2)), nn.Linear(2, 2)
    with pytest.raises(
        UsageError, match=r"weight and model\.weight of the model have the same name"
    ):
        made.session(tmp_path)


class Named(nn.Module):
    """Layers whose names have characters that the IR lacks, two of them equal without these.

    Trailing numbers are removed from names in the program, which leaves a Python keyword here.
    """

    def __init__(self):
        super().__init__()
        keys = ("my layer", "my_layer", "a/b%2F=", "1<x>", "é")
        self.layers = nn.ModuleDict({key: nn.Linear(6, 6) for key in keys})
        self.register_parameter("the root=1", nn.Parameter(torch.ones(6)))
        self.register_parameter("the tied", self.get_parameter("the root=1"))
        self.lambda_1 = nn.Parameter(torch.full((6,), 0.5))

    def forward(self, x):
        for layer in self.layers.values():
            x = torch.tanh(layer(x)) * self.get_parameter("the root=1") + self.lambda_1 * x
        return x


def test_layers_may_have_any_name(tmp_path):
    ours, theirs = Kit(), Kit()
    ours.model, theirs.model = Named().double(), Named().double()
    theirs.model.load_state_dict(ours.model.state_dict())
    for kit in (ours, theirs):
        kit.optimizer = torch.optim.Adam(kit.model.parameters(), 0.01)
    with ours.session(tmp_path):
        found = ours.train_once()
    torch.testing.assert_close(found, theirs.train_once(), rtol=1e-6, atol=1e-7)
    expected = ours.model.state_dict()
    checkpoint = checkpoints.latest(tmp_path)
    stored = names_in_state_dict(checkpoint)
    assert stored.keys() == expected.keys()
    for name, value in expected.items():
        assert (checkpoint.tensor(stored[name]) == value.numpy()).all(), name
