"""A recorded step whose matrices come in parts: its own way back is cut as csrun.nn's is."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

import numpy as np  # noqa: E402
from support.programs import Machine, options_of  # noqa: E402
from support.recorded import Beside, supervised  # noqa: E402

from csrun.base.mode import ExecutionMode  # noqa: E402
from csrun.compiler import compile_model  # noqa: E402
from csrun.executable import tensors_of  # noqa: E402
from csrun.pytorch.weights.store_copies import StoredWeights  # noqa: E402
from csrun.records.torch_names import stored_name  # noqa: E402

B, T, V, D, UNITS, RATE = 4, 6, 61, 16, 48, 0.1


class Language(torch.nn.Module):
    """An embedding, two linear layers, and the table again, or a head of its own."""

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
