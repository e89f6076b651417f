"""Loops that compute on tensors which no loader gives: they come with each step, as in PyTorch."""

import io
import json
from functools import wraps
from itertools import accumulate

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402


class Noisy(nn.Module):
    """Adds random numbers of each of PyTorch's ways to draw them."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        h = self.first(x)
        h = h + torch.randn_like(h) * torch.rand(6, dtype=h.dtype)
        h = h * torch.empty_like(h).bernoulli_(0.7) + torch.normal(h.detach(), 0.1)
        return self.last(h + torch.zeros(6, dtype=h.dtype).uniform_())


class Autoencoder(nn.Module):
    """A variational one, which also draws in eval()."""

    def __init__(self):
        super().__init__()
        self.mean, self.spread, self.last = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(3, 4)

    def forward(self, x):
        std = torch.exp(0.5 * self.spread(x))
        return self.last(self.mean(x) + std * torch.randn_like(std))


class Gumbel(nn.Module):
    """Chooses by a Gumbel softmax."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.last(functional.gumbel_softmax(self.first(x), tau=0.7))


class Given(nn.Module):
    """Takes another tensor with the batch."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x, other):
        return self.last(self.first(x) * other)


def seeded(loop):
    @wraps(loop)
    def run(kit):
        torch.manual_seed(3)
        return loop(kit)

    return run


def name_of(loop):
    return loop.__name__


@seeded
def one_pass(kit):
    return kit.train_once()


@pytest.mark.parametrize("layer", [Noisy, Autoencoder, Gumbel])
def test_forward_draws_pytorchs_random_numbers(tmp_path, layer):
    beside(one_pass, tmp_path, layer(), settings={"fast": True})
    found = json.loads((tmp_path / "performance" / "performance.json").read_text())
    assert sum(found["recorded_steps"].values()) == (5 if layer is Noisy else 0)


class Twice(Autoencoder):
    """Sets its own seed, or draws a number that decides what it computes."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        if self.how == "seeds":
            torch.manual_seed(11)
        if self.how == "decides" and torch.rand(()) < 0.5:
            x = x.tanh()
        if self.how == "scales":
            x = x * torch.rand(x.shape[1:], dtype=x.dtype)
        return super().forward(x)


def steps_of(kit, loss_of, passes=2):
    losses = []
    for number in range(passes):
        for step, (x, y) in enumerate(kit.train):
            kit.optimizer.zero_grad()
            loss = loss_of(x, y, number * 6 + step)
            loss.backward()
            kit.optimizer.step()
            losses.append(loss.detach())
        kit.model.eval()
        with torch.no_grad():
            losses += [kit.model(x).sum().item() for x, _ in kit.val]
        kit.model.train()
    return losses


@seeded
def alone(kit):
    return steps_of(kit, lambda x, y, step: kit.criterion(kit.model(x), y))


@seeded
def two_views(kit):
    """Two calls of the model, and a draw of the loop between them."""

    def loss_of(x, y, step):
        first, noise = kit.model(x), torch.randn(8, 4, dtype=x.dtype)
        return kit.criterion(first + 0.1 * noise, y) + (kit.model(x) - first).square().mean()

    return steps_of(kit, loss_of)


@seeded
def changed_after_the_call(kit):
    """A step that has drawn is recorded after all: it must not draw other numbers."""

    def loss_of(x, y, step):
        out = kit.model(x)
        more = torch.rand(()).double() if step % 4 == 3 else 0.0
        return kit.criterion(out, y) + (more * out.square().mean() if step > 7 else 0)

    return steps_of(kit, loss_of)


@pytest.mark.parametrize("how", ["draws", "seeds", "decides", "scales"])
@pytest.mark.parametrize("loop", [alone, two_views, changed_after_the_call], ids=name_of)
def test_draws_of_forward_come_in_pytorchs_order(tmp_path, loop, how):
    beside(loop, tmp_path, Twice(how))


class GivenKit(Kit):
    """A model of two arguments."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.model = self.model[0]


@seeded
def diffusion(kit):
    """Noise of a step that is drawn for each sample."""
    table = torch.linspace(0.1, 1, 10, dtype=torch.float64)
    losses = []
    for x, _ in kit.train:
        t, noise = torch.randint(0, 10, (len(x),)), torch.randn_like(x)
        part = table[t][:, None]
        kit.optimizer.zero_grad()
        found = kit.model(x * part.sqrt() + noise * (1 - part).sqrt(), part)
        loss = functional.mse_loss(found, noise[:, :4])
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


@seeded
def mixup(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        share, order = 1 / (2 + step), torch.randperm(len(x))
        kit.optimizer.zero_grad()
        out = kit.model(share * x + (1 - share) * x[order], torch.ones(6, dtype=x.dtype))
        loss = share * kit.criterion(out, y) + (1 - share) * kit.criterion(out, y[order])
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.item())
    return losses


@seeded
def other_tensors(kit):
    """A tensor that the loop gives with each batch, and one that it changes in place."""
    losses, running = [], torch.zeros(6, dtype=torch.float64)
    for step, (x, y) in enumerate(kit.train):
        running += step
        other = torch.full((6,), float(step), dtype=torch.float64) + running
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x, other / 10), y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


@seeded
def changed_late(kit):
    """As many steps are taken on tokens before the tensor changes."""
    losses, other = [], torch.ones(6, dtype=torch.float64)
    for epoch in range(2):
        for step, (x, y) in enumerate(kit.train):
            if epoch and step > 1:
                other = other + 0.1
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x, other), y)
            loss.backward()
            kit.optimizer.step()
            losses.append(loss.detach())
    return losses


@seeded
def annealed(kit):
    losses, ones = [], torch.ones(6, dtype=torch.float64)
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        out = kit.model(x, ones)
        loss = kit.criterion(out, y) + 0.1 * step * out.square().mean()
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


LOOPS = (diffusion, mixup, other_tensors, changed_late, annealed)


@pytest.mark.parametrize("loop", LOOPS, ids=name_of)
def test_the_loop_makes_tensors_and_numbers_of_its_own(tmp_path, loop):
    beside(loop, tmp_path, Given(), kit=GivenKit)


class Recurrent(nn.Module):
    """Goes on from the state of the batch before."""

    def __init__(self):
        super().__init__()
        self.cell, self.last = nn.GRUCell(6, 5), nn.Linear(5, 4)

    def forward(self, x, state):
        state = self.cell(x, state)
        return self.last(state), state


@seeded
def carried(kit):
    losses, state = [], torch.zeros(8, 5, dtype=torch.float64)
    for _ in range(2):
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            out, state = kit.model(x, state.detach())
            loss = kit.criterion(out, y)
            loss.backward()
            kit.optimizer.step()
            losses.append(loss.detach())
    return losses


@seeded
def carried_late(kit):
    """Each pass begins with the same state, but the second one goes on with it."""
    losses, first = [], torch.zeros(8, 5, dtype=torch.float64)
    for epoch in range(2):
        state = first
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            out, state = kit.model(x, state)
            state = state.detach() if epoch else first
            loss = kit.criterion(out, y)
            loss.backward()
            kit.optimizer.step()
            losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("loop", [carried, carried_late], ids=name_of)
def test_a_state_goes_on_from_batch_to_batch(tmp_path, loop):
    beside(loop, tmp_path, Recurrent(), kit=GivenKit)


class ScriptKit(Kit):
    """No loader of csrun's is there."""

    def session(self, folder, **options):
        cbtorch.initialize(model_dir=folder, **options)
        self.model = cbtorch.module(self.model)
        return cbtorch.Session(self.model, self.optimizer, self.criterion, mode="train")

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss


@seeded
def drawn_batches(kit):
    """As nanoGPT: a batch is what a random index chooses."""
    x, y = kit.train.dataset.tensors
    losses = []
    for _ in range(8):
        chosen = torch.randint(len(x), (6,))
        losses.append(kit.step(x[chosen], y[chosen]).item())
    return losses


@seeded
def whole_data(kit):
    """All of the data in each step, which is a fast one from step 4 on; a bit of it changes."""
    x, y = kit.train.dataset.tensors
    losses = []
    for step in range(12):
        if step == 9:
            x = x * 2
        losses.append(kit.step(x, y).detach())
    return losses


@seeded
def accumulated(kit):
    x, y = kit.train.dataset.tensors
    losses = []
    for step in range(6):
        kit.optimizer.zero_grad()
        for part in range(3):
            at = slice(4 * part + step, 4 * part + step + 4)
            loss = kit.criterion(kit.model(x[at]), y[at]) / 3
            loss.backward()
            losses.append(loss.detach())
        kit.optimizer.step()
    return losses


@seeded
def plain_loader(kit):
    """A DataLoader that was not given to cbtorch.dataloader."""
    return [loss for _ in range(2) for loss in kit.train_once()]


@seeded
def evaluated(kit):
    x, y = kit.train.dataset.tensors
    losses = []
    for step in range(6):
        losses.append(kit.step(x[step : step + 8], y[step : step + 8]).item())
        kit.model.eval()
        with torch.no_grad():
            losses.append(kit.criterion(kit.model(x), y).item())
        kit.model.train()
    return losses


@seeded
def saved(kit):
    """The state is saved after an evaluation, whose last step nothing ends."""
    x, y = kit.train.dataset.tensors
    found = []
    for step in range(4):
        found.append(kit.step(x[step : step + 8], y[step : step + 8]).item())
        kit.model.eval()
        found.append(kit.criterion(kit.model(x), y).item())
        kept = io.BytesIO()
        torch.save(kit.model.state_dict(), kept)
        kept.seek(0)
        found += [weights.sum().item() for weights in torch.load(kept).values()]
        kit.model.train()
    return found


OWN = (drawn_batches, whole_data, accumulated, plain_loader, evaluated, saved)


@pytest.mark.parametrize("loop", OWN, ids=name_of)
@pytest.mark.parametrize("fast", [True, False])
def test_no_loader_makes_the_batches(tmp_path, loop, fast):
    beside(loop, tmp_path, kit=ScriptKit, settings={"fast": fast})


def test_steps_on_the_same_tensors_are_fast(tmp_path):
    kit = ScriptKit()
    with kit.session(tmp_path):
        whole_data(kit)
    found = json.loads((tmp_path / "performance" / "performance.json").read_text())
    assert not found["recorded_steps"]


def test_steps_on_a_loaders_batches_and_on_others_take_turns(tmp_path):
    @seeded
    def loop(kit):
        x, y = kit.train.dataset.tensors
        losses = []
        for step in range(3):
            losses += kit.train_once()
            for at in range(2):
                kit.optimizer.zero_grad()
                loss = kit.criterion(kit.model(x[at : at + 9 - step]), y[at : at + 9 - step])
                loss.backward()
                kit.optimizer.step()
                losses.append(loss.item())
        return losses

    beside(loop, tmp_path)


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
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x, edges.to_sparse()), y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


@seeded
def a_sparse_graph(kit):
    """All nodes in each step, which is a fast one."""
    x, y = kit.train.dataset.tensors
    edges = (torch.rand(48, 48, dtype=torch.float64) < 0.1).double().to_sparse()
    losses = []
    for _ in range(6):
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x, edges)[:30], y[:30])
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


class GraphKit(ScriptKit):
    def __init__(self, *layers):
        super().__init__(*layers)
        self.model = self.model[0]


@pytest.mark.parametrize(("loop", "make"), [(sparse_edges, GivenKit), (a_sparse_graph, GraphKit)])
def test_a_sparse_matrix_of_the_script_is_a_dense_constant(tmp_path, loop, make):
    beside(loop, tmp_path, Graph(), kit=make)


def each_step(kit, loss_of):
    """Training by a loss of the batch and the step's number; what it gives, flat."""
    found = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        loss, *others = loss_of(x, y, step)
        loss.backward()
        kit.optimizer.step()
        found += [loss.item(), *(other.sum().item() for other in others)]
    return found


@seeded
def shifted_values(kit):
    """Every other step makes an operator more, so that its values have other numbers."""

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
    """A number that changes, of an operator that is not there any more later."""

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


def late_constant(kit):
    return each_step(
        kit,
        lambda x, y, step: (
            kit.criterion(kit.model(x, torch.full((6,), 1 + 0.1 * (step > 3)).double()), y),
        ),
    )


def own_batches(kit):
    x, y = kit.train.dataset.tensors
    return [kit.step(x[at : at + 7], y[at : at + 7]).item() for at in range(0, 35, 7)]


@pytest.mark.parametrize(
    ("loop", "make"), [(late_constant, GivenKit), (own_batches, ScriptKit)], ids=["late", "own"]
)
def test_a_session_an_epoch_trains_as_one(tmp_path, loop, make):
    layers = [Given()] if make is GivenKit else []
    ours, theirs = make(*layers), make(*layers)
    session = ours.session(tmp_path)
    found = []
    for _ in range(3):
        with session:
            found += loop(ours)
        session = cbtorch.Session(ours.model, ours.optimizer, ours.criterion, mode="train")
    expected = [loss for _ in range(3) for loss in loop(theirs)]
    assert found == pytest.approx(expected, rel=1e-6)


class Leaky(nn.Module):
    """Computes with random numbers that its operator draws."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.last(functional.rrelu(self.first(x), training=True))


def test_an_operator_that_computes_with_its_own_draws_is_refused(tmp_path):
    kit = Kit(Leaky())
    said = r"test_script_tensors.py:\d+: aten.rrelu.*computes with random numbers that it draws"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()


def test_a_label_out_of_range_is_refused_with_the_users_line(tmp_path):
    kit = ScriptKit()
    x, y = kit.train.dataset.tensors
    y = y.clone()
    y[12] = 9
    said = r"step 3: row 2: the tensor of .*\.py:\d+ must be in 0..3, got 9"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for at in range(0, 20, 5):
            kit.step(x[at : at + 5], y[at : at + 5])


@seeded
def centered_late(kit):
    """The loss takes a mean that is first made after a pass."""
    losses, center = [], torch.zeros(4, dtype=torch.float64)
    for _ in range(3):
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x) - center, y)
            loss.backward()
            kit.optimizer.step()
            losses.append(loss.detach())
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
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            kit.optimizer.step()
            losses.append(loss.detach())
            now = ahead
    return losses


@pytest.mark.parametrize("loop", [centered_late, prefetched], ids=name_of)
def test_values_of_earlier_steps_are_used_later(tmp_path, loop):
    beside(loop, tmp_path)


class Stream(IterableDataset):
    """Samples without numbers, whose batches have several lengths and a text."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        sizes = (4, 7, 4, 7, 4, 7)
        starts = accumulate(sizes, initial=0)
        for start, size in zip(starts, sizes, strict=False):
            yield {"x": self.x[start : start + size], "y": self.y[start : start + size], "n": "a"}


@seeded
def streamed(kit):
    losses = []
    for _ in range(3):
        for batch in DataLoader(Stream(*kit.train.dataset.tensors), batch_size=None):
            losses.append(kit.step(batch["x"], batch["y"]).item())
    return losses


def test_a_plain_loader_may_be_of_any_kind(tmp_path):
    beside(streamed, tmp_path, kit=ScriptKit)
    found = json.loads((tmp_path / "performance" / "performance.json").read_text())
    assert not found["recorded_steps"], "each length has its own program"


@seeded
def read_before_the_loss(kit):
    """The hits are printed before all that the step takes is given."""
    x, y = kit.train.dataset.tensors
    found = []
    for at in range(0, 40, 5):
        inputs, labels = x[at : at + 5], y[at : at + 5]
        kit.optimizer.zero_grad()
        out = kit.model(inputs)
        found.append((out.argmax(1) == labels).sum().item())
        loss = kit.criterion(out, labels)
        loss.backward()
        kit.optimizer.step()
        found.append(loss.item())
    return found


def test_values_may_be_read_within_a_step(tmp_path):
    beside(read_before_the_loss, tmp_path, kit=ScriptKit)


def test_the_state_is_not_read_within_a_recorded_step(tmp_path):
    kit = ScriptKit()
    x, y = kit.train.dataset.tensors
    said = r"test_script_tensors.py:\d+: the state of the model or optimizer is read between"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.step(x, y)
        kit.model(x)
        kit.model.state_dict()


class Changing(Twice):
    """Draws in a way that an attribute decides."""

    level = 0.1

    def forward(self, x):
        h = self.last(self.mean(x))
        if self.how == "level":
            return h + torch.empty_like(h).normal_(0, self.level)
        if self.how == "kind":
            return h + (torch.randn_like(h) if self.level < 0.2 else torch.rand_like(h))
        if self.how == "unused" and self.level > 0.2:
            torch.rand_like(h)
        if self.how == "apart":
            with torch.random.fork_rng(devices=[]):
                return h + torch.randn_like(h)
        return h + torch.randn_like(h)


@seeded
def annealed_noise(kit):
    losses = []
    for epoch in range(3):
        kit.model[0].level = 0.1 * (1 + epoch)
        losses += kit.train_once()
    return losses


@pytest.mark.parametrize("how", ["level", "kind", "unused", "apart"])
def test_draws_that_forward_changes_are_pytorchs(tmp_path, how):
    beside(annealed_noise, tmp_path, Changing(how))


@seeded
def several_shapes(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        other = torch.rand(*((6,), (8, 6), (1, 6))[step % 3], dtype=x.dtype)
        loss = kit.criterion(kit.model(x, other), y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
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
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(scaled, other), y)
            loss.backward()
            kit.optimizer.step()
            losses.append(loss.detach())
        return losses

    beside(loop, tmp_path, Given(), kit=GivenKit)


def test_tensors_of_several_shapes_have_a_program_each(tmp_path):
    beside(several_shapes, tmp_path, Given(), kit=GivenKit)


def test_a_state_with_its_gradient_is_refused_with_the_reason(tmp_path):
    kit, state = ScriptKit(Recurrent()), torch.zeros(8, 5, dtype=torch.float64)
    kit.model = kit.model[0]
    x, y = kit.train.dataset.tensors
    said = (
        r"test_script_tensors.py:\d+: a value of an earlier step .* with its gradient: call .detach"
    )
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for at in range(0, 40, 8):
            kit.optimizer.zero_grad()
            out, state = kit.model(x[at : at + 8], state)
            kit.criterion(out, y[at : at + 8]).backward()
            kit.optimizer.step()
