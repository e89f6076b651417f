"""What a loop may not ask for is said in one line; what PyTorch only checks is not asked."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import distributions, nn, optim  # noqa: E402
from torch.nn import functional as f  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import CsrunError, UsageError  # noqa: E402


class Model(nn.Module):
    """A function of a linear layer; norm and pool are the model's own."""

    def __init__(self, function):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)
        self.register_buffer("slopes", torch.ones(4))
        self.register_buffer("bias", None)
        self.function = function

    def forward(self, x):
        return self.function(self, self.linear(x))


def losses(folder, function, read=None, clip=None):
    """Of 5 steps, in a Session, or in PyTorch without a folder. read: the first step of which
    the model's other output is read, behind `optimizer.step()`."""
    torch.manual_seed(0)
    model = Model(function).double()
    optimizer = optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(torch.randn(20, 4).double(), torch.arange(20) % 4), 4)
    found = []

    def loop(batches):
        for step, (x, y) in enumerate(batches):
            optimizer.zero_grad()
            out = model(x)
            loss = out[0] if isinstance(out, tuple) else f.cross_entropy(out, y)
            torch.autograd.backward([loss])
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            found.append(loss.detach())
            if read is not None and step >= read:
                found.append(out[1].sum().item())

    if folder is None:
        loop(loader)
    else:
        cbtorch.initialize(model_dir=folder)
        model, batches = cbtorch.module(model), cbtorch.dataloader(loader)
        with cbtorch.Session(model, optimizer, None, mode="train"):
            loop(batches)
    return [float(x) for x in found]


def has_a_view_of_a_weight(self, h):
    return h.square().mean(), self.linear.weight.view(-1)


def has_places(self, h):
    values, places = f.max_pool1d(h[:, None], 2, return_indices=True)
    return values.square().mean(), places


def makes_a_buffer(self, h):
    if self.bias is None:
        self.register_buffer("bias", torch.arange(4.0).double() * self.slopes)
    return h + self.bias


REFUSED = {
    makes_a_buffer: "forward creates the buffer bias: create it in __init__",
    has_a_view_of_a_weight: "a view of parameter linear.weight is read after optimizer.step",
    has_places: "max-pooling indices are not available to the loop",
    lambda self, h: self.norm(h): "value of the counter norm.num_batches_tracked.*momentum",
}


@pytest.mark.parametrize("function", REFUSED)
def test_it_is_refused_with_its_line(tmp_path, function):
    with pytest.raises(CsrunError, match=r"test_clear_lines.py:\d+: .*" + REFUSED[function]):
        losses(tmp_path, function, read=0)


class Views(nn.Linear):
    """Returns a view of its weight, too."""

    def forward(self, x):
        return super().forward(x), self.weight.view(-1, 3)


def train(kit, before, behind):
    """One pass; what is read of the view from step 4 on, before and behind its update."""
    found, seen = [], []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        out, view = kit.model(x)
        kit.criterion(out, y).backward()
        if step > 3:
            seen.append(before(view))
        kit.optimizer.step()
        if step > 3:
            found += behind(view, seen)
    return found


def test_a_view_of_a_weight_is_pytorchs_before_its_update(tmp_path):
    def loop(kit):
        return train(
            kit,
            lambda view: (view.detach().mean(), view[1].sum().item()),
            lambda view, seen: [*seen[-1], *seen[0]],
        )

    beside(loop, tmp_path, Views(6, 4))


STALE = {
    "itself": (lambda view: view, lambda view, seen: [view.sum().item()]),
    "kept": (lambda view: view.detach(), lambda view, seen: [float(x.numpy()[0, 0]) for x in seen]),
    "a view of it": (lambda view: view[0], lambda view, seen: [seen[-1].detach().sum()]),
}


@pytest.mark.parametrize("read", STALE.values(), ids=STALE)
def test_a_view_of_a_weight_is_refused_behind_its_update(tmp_path, read):
    kit = Kit(Views(6, 4))
    said = r"test_clear_lines.py:\d+: a view of parameter 0.weight is read after optimizer.step"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        train(kit, *read)


def test_a_lazy_module_is_refused_before_it_has_shapes(tmp_path):
    cbtorch.initialize(model_dir=tmp_path)
    with pytest.raises(UsageError, match=r"weight of the model has no shape.*run a batch through"):
        cbtorch.module(nn.LazyLinear(4))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
def test_a_scripted_module_is_refused(tmp_path):
    cbtorch.initialize(model_dir=tmp_path)
    with pytest.raises(UsageError, match=r"test_clear_lines.py:\d+: .*torch.jit.ScriptModule"):
        cbtorch.module(nn.Sequential(torch.jit.script(nn.Linear(4, 4))))


def test_a_bound_of_the_optimizer_that_pytorch_lacks_is_named(tmp_path):
    kit = Kit(optimizer=lambda p: optim.AdamW(p, eps=0))
    said = r"param_groups\[0\]: eps must be > 0, got 0 \(PyTorch allows 0\)"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()


def test_a_group_added_in_the_block_is_refused_by_the_number_of_parameters(tmp_path):
    kit = Kit()
    first, *rest = kit.model.parameters()
    kit.optimizer = optim.SGD([first], 0.1)

    def add(step):
        if step == 4:
            kit.optimizer.add_param_group({"params": rest})

    said = (
        r"py:\d+: the optimizer's param_groups had \[1\] parameters .* have \[1, 3\]: call add_par"
    )
    with pytest.raises(UsageError, match=said) as error, kit.session(tmp_path):
        kit.train_once(add)
    assert "OneCycleLR" not in str(error.value)


def test_an_option_changed_in_the_block_is_named_with_its_remedy(tmp_path):
    kit = Kit(optimizer=lambda p: optim.Adam(p))

    def change(step):
        if step == 4:
            kit.optimizer.param_groups[0]["eps"] = 1e-6

    said = r"eps of param_groups\[0\] was 1e-08 and is 1e-06: continue in a new Session"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once(change)


def scores_by_distributions(self, h):
    normal = distributions.Normal(h[:, :2], h[:, 2:].exp())
    one = distributions.Normal(torch.zeros(2).double(), torch.ones(2).double())
    chosen = distributions.Categorical(logits=h).log_prob(torch.tensor([0, 1, 2, 3]))
    away = distributions.kl_divergence(normal, one)
    return away.mean() - chosen.mean() - normal.log_prob(torch.ones(1)).mean(), h


def spreads_more_than_it_has(self, h):
    return h.var(1, correction=3).mean(), h


def has_a_row(self, h):
    """A vector by a matrix, which PyTorch squeezes in place."""
    row = h[0] @ self.linear.weight
    return (h * row).square().mean() * row.dim(), row


def has_truths(self, h):
    return h.square().mean(), torch.ones_like(h, dtype=torch.bool)


@pytest.mark.parametrize(
    ("function", "clip"),
    [
        (has_truths, None),
        (has_a_row, None),
        (scores_by_distributions, None),
        (spreads_more_than_it_has, None),
        (lambda self, h: h, 0.0),
    ],
    ids=["truths", "row", "distributions", "correction", "clipped to zero"],
)
def test_it_is_pytorchs(tmp_path, function, clip):
    read = 0 if function is has_truths else None
    expected = losses(None, function, read, clip)
    assert losses(tmp_path, function, read, clip) == pytest.approx(expected, rel=1e-9)
