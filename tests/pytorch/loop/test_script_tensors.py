"""Tensors of the loop that are from no loader: inputs of each step, as in PyTorch."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.script_loops import Given, GivenKit, Recurrent, ScriptKit, each_step, name_of, seeded  # noqa: E402
from support.torch_loops import beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402


@seeded
def diffusion(kit):
    """Diffusion step with noise drawn for each sample."""
    table = torch.linspace(0.1, 1, 10, dtype=torch.float64)
    losses = []
    for x, _ in kit.train:
        t, noise = torch.randint(0, 10, (len(x),)), torch.randn_like(x)
        part = table[t][:, None]
        found = kit.model(x * part.sqrt() + noise * (1 - part).sqrt(), part)
        losses.append(kit.update(functional.mse_loss(found, noise[:, :4])))
    return losses


@seeded
def mixup(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        share, order = 1 / (2 + step), torch.randperm(len(x))
        out = kit.model(share * x + (1 - share) * x[order], torch.ones(6, dtype=x.dtype))
        losses.append(
            kit.update(
                share * kit.criterion(out, y) + (1 - share) * kit.criterion(out, y[order])
            ).item()
        )
    return losses


@seeded
def other_tensors(kit):
    """A new tensor with each batch, and one that is changed in place."""
    losses, running = [], torch.zeros(6, dtype=torch.float64)
    for step, (x, y) in enumerate(kit.train):
        running += step
        other = torch.full((6,), float(step), dtype=torch.float64) + running
        losses.append(kit.update(kit.criterion(kit.model(x, other / 10), y)))
    return losses


@seeded
def changed_late(kit):
    """Tensor that is first changed after several steps on tokens."""
    losses, other = [], torch.ones(6, dtype=torch.float64)
    for epoch in range(2):
        for step, (x, y) in enumerate(kit.train):
            if epoch and step > 1:
                other = other + 0.1
            losses.append(kit.update(kit.criterion(kit.model(x, other), y)))
    return losses


@seeded
def annealed(kit):
    losses, ones = [], torch.ones(6, dtype=torch.float64)
    for step, (x, y) in enumerate(kit.train):
        out = kit.model(x, ones)
        losses.append(kit.update(kit.criterion(out, y) + 0.1 * step * out.square().mean()))
    return losses


LOOPS = (diffusion, mixup, other_tensors, changed_late, annealed)


@pytest.mark.parametrize("loop", LOOPS, ids=name_of)
def test_the_loop_makes_tensors_and_numbers_of_its_own(tmp_path, loop):
    beside(loop, tmp_path, Given(), kit=GivenKit)


@seeded
def carried(kit):
    losses, state = [], torch.zeros(8, 5, dtype=torch.float64)
    for _ in range(2):
        for x, y in kit.train:
            out, state = kit.model(x, state.detach())
            losses.append(kit.update(kit.criterion(out, y)))
    return losses


@seeded
def carried_late(kit):
    """Passes with the same initial state; only the second one carries it on."""
    losses, first = [], torch.zeros(8, 5, dtype=torch.float64)
    for epoch in range(2):
        state = first
        for x, y in kit.train:
            out, state = kit.model(x, state)
            state = state.detach() if epoch else first
            losses.append(kit.update(kit.criterion(out, y)))
    return losses


@pytest.mark.parametrize("loop", [carried, carried_late], ids=name_of)
def test_a_state_goes_on_from_batch_to_batch(tmp_path, loop):
    beside(loop, tmp_path, Recurrent(), kit=GivenKit)


class Graph(nn.Module):
    """Two layers of a graph network over a sparse matrix."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x, edges):
        x = torch.spmm(edges, self.first(x)).relu()
        return torch.sparse.mm(edges, self.last(x))


@seeded
def sparse_edges(kit):
    edges = (torch.rand(8, 8, dtype=torch.float64) < 0.4).double()
    losses = []
    for step, (x, y) in enumerate(kit.train):
        edges[step % 8, 0] = step
        losses.append(kit.update(kit.criterion(kit.model(x, edges.to_sparse()), y)))
    return losses


@seeded
def a_sparse_graph(kit):
    """All nodes in each step, on the fast path."""
    x, y = kit.train.dataset.tensors
    edges = (torch.rand(48, 48, dtype=torch.float64) < 0.1).double().to_sparse()
    losses = []
    for _ in range(6):
        losses.append(kit.update(kit.criterion(kit.model(x, edges)[:30], y[:30])))
    return losses


class GraphKit(ScriptKit):
    def __init__(self, *layers):
        super().__init__(*layers)
        self.model = self.model[0]


@pytest.mark.parametrize(("loop", "make"), [(sparse_edges, GivenKit), (a_sparse_graph, GraphKit)])
def test_a_sparse_matrix_of_the_script_is_a_dense_constant(tmp_path, loop, make):
    beside(loop, tmp_path, Graph(), kit=make)


@seeded
def shifted_values(kit):
    """One more operator in every other step, so that values are numbered differently."""

    def loss_of(x, y, step):
        if step % 2:
            _ = x * 2
        out = kit.model(x, torch.ones(6, dtype=x.dtype))
        scaled = out * 3
        return kit.criterion(scaled, y), out, scaled

    return each_step(kit, loss_of)


@seeded
def exchanged_draws(kit):
    """Two draws whose order changes."""

    def loss_of(x, y, step):
        if step % 2:
            a, b = torch.randn_like(x), torch.randn_like(x)
        else:
            b, a = torch.randn_like(x), torch.randn_like(x)
        return (kit.criterion(kit.model(x * a + b * 0.1, a), y),)

    return each_step(kit, loss_of)


@seeded
def number_then_none(kit):
    """Varying number in an operator that later steps lack."""

    def loss_of(x, y, step):
        out = kit.model(x, torch.ones(6, dtype=x.dtype))
        loss = kit.criterion(out, y)
        return (loss + 0.1 * (step + 1) * out.square().mean() if step % 2 == 0 else loss,)

    return each_step(kit, loss_of)


@seeded
def accumulated_of_loader(kit):
    found = []
    for step, (x, y) in enumerate(kit.train):
        loss = kit.criterion(kit.model(x, torch.rand(6, dtype=x.dtype)), y) * (1 + step / 4)
        loss.backward()
        if step % 2:
            kit.optimizer.step()
            kit.optimizer.zero_grad()
        found.append(loss.detach())
    return found


NUMBERED = (shifted_values, exchanged_draws, number_then_none, accumulated_of_loader)


@pytest.mark.parametrize("loop", NUMBERED, ids=name_of)
def test_graphs_that_are_numbered_otherwise_have_their_own_values(tmp_path, loop):
    beside(loop, tmp_path, Given(), kit=GivenKit)


@seeded
def centered_late(kit):
    """Loss with a mean that is first computed after a pass."""
    losses, center = [], torch.zeros(4, dtype=torch.float64)
    for _ in range(3):
        for x, y in kit.train:
            losses.append(kit.update(kit.criterion(kit.model(x) - center, y)))
        kit.model.eval()
        with torch.no_grad():
            center = sum(kit.model(x).mean(0) for x, _ in kit.val) / 5
        kit.model.train()
    return losses


@seeded
def prefetched(kit):
    losses = []
    for _ in range(2):
        batches = iter(kit.train)
        now = next(batches)
        while now is not None:
            ahead, (x, y) = next(batches, None), now
            losses.append(kit.update(kit.criterion(kit.model(x), y)))
            now = ahead
    return losses


@pytest.mark.parametrize("loop", [centered_late, prefetched], ids=name_of)
def test_values_of_earlier_steps_are_used_later(tmp_path, loop):
    beside(loop, tmp_path)


@seeded
def several_shapes(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        other = torch.rand(*((6,), (8, 6), (1, 6))[step % 3], dtype=x.dtype)
        losses.append(kit.update(kit.criterion(kit.model(x, other), y)))
    return losses


@pytest.mark.parametrize("write", ["data", "foreach", "fused"])
def test_writes_that_pytorch_does_not_count_are_seen(tmp_path, write):
    @seeded
    def loop(kit):
        other, losses = torch.ones(6, dtype=torch.float64), []
        teacher = nn.Parameter(other.clone())
        teacher.grad = torch.ones_like(teacher)
        optimizer = torch.optim.Adam([teacher], fused=True)
        for step, (x, y) in enumerate(kit.train):
            if step > 3 and write == "data":
                other.data.add_(0.5)
            elif step > 3 and write == "foreach":
                torch._foreach_mul_([other], 1.5)
            elif step > 3:
                optimizer.step()
            with torch.no_grad():
                scaled = x * teacher
            losses.append(kit.update(kit.criterion(kit.model(scaled, other), y)))
        return losses

    beside(loop, tmp_path, Given(), kit=GivenKit)


def test_tensors_of_several_shapes_have_a_program_each(tmp_path):
    beside(several_shapes, tmp_path, Given(), kit=GivenKit)
