"""Families of operators, forward and backward, by the interpreter and by the compiler."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.programs import Machine, options_of  # noqa: E402
from support.recorded import Beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from csrun.base.mode import ExecutionMode, RunMode  # noqa: E402
from csrun.compiler import compile_model  # noqa: E402
from csrun.pytorch.lower.interpret import interpret  # noqa: E402
from csrun.pytorch.lower.to_cirh import module_of, output_name  # noqa: E402
from csrun.pytorch.record.recorder import StepRecorder  # noqa: E402
from csrun.records.torch_names import stored_name  # noqa: E402


class Function(nn.Module):
    """A function of a linear layer's result, and of a trained table that broadcasts against it."""

    def __init__(self, function, shape):
        super().__init__()
        self.linear = nn.Linear(shape[-1], shape[-1])
        self.table = nn.Parameter(torch.randn(shape[1:]))
        self.function = function

    def forward(self, x):
        return self.function(self.linear(x), self.table)


def step(model, batch):
    """A scalar of all values of the result, each with a slope of its own."""
    x, slopes = batch
    model.zero_grad()
    out = model(x)
    loss = (out * slopes[: out.numel()].view(out.shape)).sum() / 7
    loss.backward()
    return loss


def views(x, w):
    a, b = x.transpose(1, 2).reshape(4, -1).chunk(2, dim=1)
    c = w.t()[1:5:2].flatten()[None].expand(4, -1)
    return torch.cat([a.squeeze(), b.unsqueeze(0)[0], c], dim=-1)


def parts(x, w):
    first, *others = x.unbind(1)
    y = torch.stack([first, others[-1]], 2) + x[:, 1, :, None] + x.narrow(1, 0, 2).permute(0, 2, 1)
    return y * w.select(0, 1)[:, None] + x[:, -2:].mT


def arithmetic(x, w):
    y = (x + 2 * w - 0.5) / (w * w + 1.5) - (1 - x) ** 2 + torch.rsqrt(x.abs() + 1)
    y = y * torch.exp(-x.clamp(-1, 0.5)) + torch.log1p(w.square()) - torch.sqrt(x * x + 1)
    return torch.where(x > w, y, -y) + torch.maximum(x, w) + (x**3).masked_fill(x < 0, 0.25)


def activations(x, w):
    y = f.relu(x) + f.gelu(x) + f.gelu(w * x, approximate="tanh") + f.silu(x) + torch.tanh(w)
    y = y + torch.sigmoid(x) + f.softplus(x) + f.elu(x) + f.leaky_relu(x, 0.1)
    return y + f.hardtanh(x) + f.logsigmoid(w).abs() + f.softshrink(x * w, 0.1)


def reductions(x, w):
    y = x.sum((1, 2)) + x.mean(2).amax(1) + x.var(2).min(1).values + torch.logsumexp(x, 2)[:, 0]
    return y + w.std() + x.norm(dim=(1, 2)) + x.max(2)[0][:, 1] + (w * w).mean()


def places_from_the_end(x, w):
    return x[:, torch.tensor([-1, 0, -3])] + w[[-2, -1, 1]] + x.index_select(2, torch.arange(6))


def softmaxes(x, w):
    return f.softmax(x, 1) * f.log_softmax(x + w, -1)


def products(x, w):
    y = torch.einsum("bij,kj->bik", x, w) + x @ w.t() + torch.bmm(x, x.transpose(1, 2))
    return y + torch.baddbmm(y, x, w.t().expand(4, -1, -1), beta=0.5, alpha=2)


def norms(x, w):
    y = f.layer_norm(x, (6,), w[0], w[1]) + f.layer_norm(x, (3, 6), w) + f.layer_norm(x, (6,))
    return y + f.rms_norm(x, (6,), w[2])


def lookups(x, w):
    places = torch.tensor([2, 0, 0])
    y = f.embedding(torch.tensor([[0, 1, 2]] * 4), w) + f.embedding(places, w) + w[places]
    return (
        y
        + x.index_select(1, places)
        + x.gather(1, torch.tensor([0, 2, 1])[None, :, None].expand(4, 3, 6))
        + torch.tril(x)
    )


def masked_attention(x, w):
    heads = x.view(4, 1, 3, 6)
    added = torch.tensor([[0.0, -1e4, 0.5]] * 3).double()
    out = f.scaled_dot_product_attention(heads, heads * w, heads + w, attn_mask=added)
    seen = torch.ones(3, 3, dtype=torch.bool).tril()
    return out[:, 0] + f.scaled_dot_product_attention(x, x, x * w, attn_mask=seen, scale=0.3)


def in_place(x, w):
    y = x + 1
    y += w
    y = f.relu(y, inplace=True) * w
    y.mul_(0.5).clamp_(min=-0.25)
    return y


def trigonometry(x, w):
    y = torch.sin(x) * torch.cos(w) + torch.tan(x / 4) + torch.atan(x) + torch.atan2(x, w)
    y = y + torch.asin(torch.tanh(x)) + torch.acos(torch.tanh(w)) + torch.erf(x) + torch.erfc(w)
    return y + torch.expm1(x / 2) + torch.exp2(w) + torch.log2(x.abs() + 1) + torch.logaddexp(x, w)


def signs(x, w):
    y = torch.copysign(x, w) + x * torch.signbit(w) + torch.hypot(x, w) + w.hypot(w)
    y = y + torch.fmax(x, w) * torch.fmin(x, w).masked_fill(x < w, 0.5) + torch.angle(x) * w
    return y + f.hardshrink(x, 0.3) * w + torch.copysign(w, -0.0)


def searches(x, w):
    bounds, kinds = (
        torch.tensor([-0.5, 0, 0.5]).double(),
        torch.bucketize(x.detach(), w[0].sort()[0]),
    )
    y = x * torch.searchsorted(bounds, x, right=True) + x * torch.isin(kinds, torch.tensor([1, 4]))
    chosen = x.detach()[:, :1] > 0  # of the whole batch, in order
    return y + x.masked_scatter(chosen.expand(x.shape), (x * w).transpose(0, 1))


def roundings(x, w):
    y = x * torch.floor(w) + w * torch.round(x, decimals=1) + x % (w.abs() + 0.5)
    y = y + torch.fmod(x, w.abs() + 0.5) + x * (x.detach() // 0.5) + x.frac() + w * x.ceil().trunc()
    return y + f.softplus(x, 3, 0.2) + f.celu(x, 0.7)


def written_places(x, w):
    places = torch.tensor([2, 0]), torch.tensor([1, 5])
    put = torch.ops.aten.index_put(x, [None, *places], w[0, :2].detach())
    y = put + x.index_add(1, places[0], x[:, :2], alpha=2)
    y = y + x.scatter_reduce(1, torch.zeros(4, 2, 6, dtype=torch.int64), x[:, 1:], "mean")
    y = (
        y
        + torch.slice_scatter(x, w[:2] * x[:, :2], 1, 0, 2)
        + x.unfold(1, 2, 1).sum((1, 3))[:, None]
    )
    return y + torch.diag_embed(torch.diagonal(x @ w.t(), dim1=1, dim2=2)).sum(1, True)[..., :1]


def numbers_at_repeated_places(x, w):
    """Integers and truths, as lengths of the batch are made masks."""
    ends = x.detach()[:, :, 0].argmax(1)
    counts, truths = torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4, 3, dtype=torch.bool)
    counts[(torch.zeros(4, dtype=torch.int64), ends)] = 3
    truths[(torch.arange(4), ends)] = True
    return x * counts[..., None] + (x * w).masked_fill(truths[..., None], 0.5)


def several_places(x, w):
    y = x[:, torch.tensor([[2], [0]]), torch.tensor([1, -1, 5])].sum((1, 2))[:, None, None]
    y = y + x[torch.arange(4)[:, None], torch.tensor([[2, 0]])].sum(1, True) * w[0]
    y = y + x[torch.tensor([0, -1, 0]), :, torch.tensor([3, 2, 3])].sum()
    y = y + x[torch.arange(4), x.detach().argmax(1)[:, 0]][:, None]  # places of the batch
    return y + x * (x.detach() > 0).cumsum(1)


def distances(x, w):
    y = torch.linalg.vector_norm(x, 3, 1) + x.logcumsumexp(1).sum(1)
    return y + torch.cdist(x, w).sum((1, 2), True)[:, 0] + torch.cdist(x, w, 1).mean(1)[:, :1]


def losses_by_label(x, w):
    labels = torch.tensor([[1, 0, 2, 2, -100, 1], [0, 0, 1, 2, 1, -100]]).repeat(2, 1)
    each = nn.functional.nll_loss(
        x, labels, torch.tensor([0.5, 2.0, 1.0]).double(), reduction="none"
    )
    several = torch.tensor([[1, 4, -1, 2, -1, 1], [5, -1, 0, 0, 0, 0]]).repeat(2, 1)
    apart = nn.functional.multilabel_margin_loss(x[:, 0], several, reduction="none")
    mean = nn.functional.multilabel_margin_loss(x[:, 1], several)
    return each + apart[:, None] + mean


FUNCTIONS = (
    several_places,
    numbers_at_repeated_places,
    distances,
    trigonometry,
    signs,
    searches,
    roundings,
    written_places,
    views,
    parts,
    arithmetic,
    activations,
    reductions,
    places_from_the_end,
    softmaxes,
    products,
    norms,
    lookups,
    masked_attention,
    in_place,
)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_family_is_pytorchs(tmp_path, function):
    torch.manual_seed(0)
    model = Function(function, (4, 3, 6)).double()
    batch = torch.randn(4, 3, 6).double(), torch.randn(100).double()
    Beside(model, batch, step, tmp_path, ExecutionMode.WEIGHT_STREAMING).check(1e-12, 1e-11)


def test_losses_of_each_label_are_pytorchs(tmp_path):
    """They are written with other operators than PyTorch's, so that not all bits are its own."""
    torch.manual_seed(0)
    model = Function(losses_by_label, (4, 3, 6)).double()
    batch = torch.randn(4, 3, 6).double(), torch.randn(100).double()
    beside = Beside(model, batch, step, tmp_path, ExecutionMode.WEIGHT_STREAMING)
    (loss, gradients), (found, ours) = beside.theirs(), beside.ours()
    assert found == pytest.approx(loss.item(), rel=1e-12)
    for name, gradient in gradients.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-11, atol=1e-14)


@pytest.mark.filterwarnings("ignore:(divide by zero|invalid value)")
def test_the_logarithm_of_a_sum_of_nothing_is_minus_infinity(tmp_path):
    class Hidden(nn.Linear):
        def forward(self, x):
            rows = torch.arange(4)[:, None]
            hidden = (
                super()
                .forward(x)
                .masked_fill(rows == 1, -torch.inf)
                .masked_fill(rows == 2, torch.inf)
            )
            return torch.logsumexp(hidden, 1).clamp(-3, 5)

    torch.manual_seed(0)
    batch = torch.randn(4, 3).double(), torch.randn(4).double()
    model = Hidden(3, 3).double()
    assert model(batch[0])[1:3].tolist() == [-3, 5]

    def step(model, batch):
        model.zero_grad()
        loss = (model(batch[0]) * batch[1]).sum()
        loss.backward()
        return loss

    Beside(model, batch, step, tmp_path).check(1e-12, 1e-11)


def test_a_choice_by_one_number_is_not_made_over_what_is_chosen_last(tmp_path):
    class Choice(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.never = nn.Linear(6, 6), torch.zeros(3, 1, dtype=torch.bool)

        def forward(self, x):
            return self.linear(x).masked_fill(self.never, 0.5)

    torch.manual_seed(0)
    batch = torch.randn(4, 3, 6).double(), torch.randn(4, 18).double().view(-1)
    Beside(Choice().double(), batch, step, tmp_path).check(1e-12, 1e-11)


def of_labels(**options):
    def criterion(out, labels):
        return f.cross_entropy(out, labels, **options)

    return criterion


LOSSES = {
    "mean": of_labels(ignore_index=2),
    "smoothed": of_labels(label_smoothing=0.1),
    "summed": of_labels(reduction="sum"),
    "each, smoothed": lambda out, labels: (
        of_labels(reduction="none", ignore_index=2, label_smoothing=0.2)(out, labels) ** 2
    ).mean(),
    "each": lambda out, labels: (
        of_labels(reduction="none", ignore_index=2)(out, labels) ** 2
    ).mean(),
    "last": lambda out, labels: of_labels()(out.view(2, 3, 5).transpose(1, 2), labels.view(2, 3)),
    "nll of rows": lambda out, labels: f.nll_loss(f.log_softmax(out, 1)[1:4], labels[1:4]),
    "nll": lambda out, labels: f.nll_loss(f.log_softmax(out, 1), labels),
    "probabilities": lambda out, labels: f.cross_entropy(
        out, f.one_hot(torch.arange(6) % 5, 5).double()
    ),
    "mse": lambda out, labels: f.mse_loss(out, f.one_hot(torch.arange(6) % 5, 5).double()),
    "l1": lambda out, labels: f.l1_loss(out, torch.linspace(0, 1, 5).double().expand(6, 5)),
    "binary": lambda out, labels: f.binary_cross_entropy_with_logits(
        out, torch.linspace(0, 1, 5).double().expand(6, 5)
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_pytorchs(tmp_path, loss):
    torch.manual_seed(0)
    batch = torch.randn(6, 4).double(), torch.tensor([0, 4, 2, 1, 2, 3])

    def step(model, batch):
        model.zero_grad()
        loss_ = LOSSES[loss](model(batch[0]), batch[1])
        loss_.backward()
        return loss_

    Beside(nn.Linear(4, 5).double(), batch, step, tmp_path).check(1e-12, 1e-11)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        self.more = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2, bias=False), nn.AvgPool2d(2))
        self.pool, self.classes = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 3)

    def forward(self, x):
        return self.classes(self.pool(self.more(self.features(x))).flatten(1))


@pytest.mark.parametrize("mode", ExecutionMode)
def test_images_are_pytorchs_and_batch_norm_has_state(tmp_path, mode):
    torch.manual_seed(0)
    model = Images().double()
    batch = torch.randn(6, 2, 12, 12).double(), torch.tensor([0, 1, 2, 1, 0, 2])

    def step(model, batch):
        model.zero_grad()
        loss = f.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        return loss

    beside = Beside(model, batch, step, tmp_path, mode)
    assert beside.recording.counters == {"features.1.num_batches_tracked": 1}
    machine = beside.machine()
    beside.check(1e-12, 1e-11)
    beside.ours(machine)
    for name in ("running_mean", "running_var"):
        ours = torch.from_numpy(machine.state[f"features/1/{name}"])
        torch.testing.assert_close(ours, getattr(model.features[1], name), rtol=1e-12, atol=1e-14)


class Dropping(nn.Module):
    """Dropout of values, with the samples on an axis behind, and of attention's weights."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(6, 6), nn.Dropout(0.25)

    def forward(self, x):
        x = self.dropout(self.linear(x))
        y = f.dropout(x.transpose(0, 1), 0.5).transpose(0, 1)
        heads = x.view(*x.shape[:2], 2, 3).transpose(1, 2)
        out = f.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.4, is_causal=True)
        return y + out.transpose(1, 2).reshape(x.shape)


def test_dropout_is_the_interpreters_by_the_same_masks(tmp_path):
    torch.manual_seed(0)
    batch = torch.randn(16, 5, 6).double(), torch.randn(500).double()
    beside = Beside(Dropping().double(), batch, step, tmp_path)
    loss, gradients = beside.interpreted()
    compiled, ours = beside.ours()
    assert abs(compiled - loss.item()) <= 1e-12 * abs(compiled)
    for name, gradient in gradients.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-11, atol=1e-13)
    (kept,) = (op for op in beside.recording.operators if op.keywords == {"p": 0.25})
    found = interpret(beside.recording, [kept.arguments[0], kept.results[0]])
    x, out = found[kept.arguments[0]], found[kept.results[0]]
    torch.testing.assert_close(out[out != 0], x[out != 0] / 0.75, rtol=1e-15, atol=0)
    share = (out != 0).double().mean().item()
    assert abs(share - 0.75) < 3 * (0.75 * 0.25 / out.numel()) ** 0.5


def test_a_value_before_the_step_has_the_steps_masks(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
    batch, read = (torch.randn(8, 6), torch.randn(100)), []

    def reading(model, batch):
        loss = step(model, batch)
        read.append(loss.item())
        return loss

    beside = Beside(model, batch, reading, tmp_path)
    assert beside.ours()[0] == pytest.approx(read[0], rel=1e-6)


def test_a_frozen_batch_norm_is_pytorchs(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3).eval(), nn.Flatten()).double()
    model[1].running_var.uniform_(0.5, 2)
    batch = torch.randn(4, 2, 6, 6).double(), torch.randn(200).double()
    Beside(model, batch, step, tmp_path).check(1e-12, 1e-11)


def test_evaluation_gives_outputs(tmp_path):
    torch.manual_seed(0)
    model = Images().double().eval()
    model.features[1].running_mean.uniform_(-1, 1)
    images = torch.randn(6, 2, 12, 12).double()
    recorder = StepRecorder(model)
    with recorder, torch.no_grad():
        logits = model(recorder.batch(images))
    recording = recorder.finish()
    module = module_of(recording, {}, RunMode.PREDICT, [logits.value])
    options = options_of(run_mode=RunMode.PREDICT)
    executable = compile_model(module, tmp_path, options).executable
    named = (*model.named_parameters(), *model.named_buffers())
    names = {p.name for p in executable.plan.parameters}
    values = {stored_name(n): p.detach().numpy() for n, p in named if stored_name(n) in names}
    machine = Machine(executable, values)
    machine.predict([images.numpy()])
    found = torch.from_numpy(machine.output(output_name(logits.value)))
    torch.testing.assert_close(found, model(images).detach(), rtol=1e-12, atol=1e-13)


class Groups(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(3, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8)
        self.pool, self.classes = nn.MaxPool1d(2), nn.Linear(8, 3)

    def forward(self, x):
        return self.classes(self.pool(f.silu(self.norm(self.conv(x)))).amax(2))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell, self.out = kind(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        hidden = (x.new_zeros(len(x), 4),) * 2
        for place in range(x.shape[1]):
            hidden = self.cell(x[:, place], hidden)
        return self.out(hidden[0])


@pytest.mark.parametrize(
    ("model", "shape"),
    [(Groups, (4, 3, 12)), (lambda: Recurrent(nn.LSTMCell), (4, 3, 6))],
    ids=["groups", "recurrent"],
)
def test_a_network_is_pytorchs(tmp_path, model, shape):
    torch.manual_seed(0)
    batch = torch.randn(shape).double(), torch.randn(100).double()
    Beside(model().double(), batch, step, tmp_path).check(1e-12, 1e-11)


def test_an_encoder_layer_of_pytorchs_own(tmp_path):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double()
    batch = torch.randn(3, 5, 8).double(), torch.randn(200).double()
    Beside(layer, batch, step, tmp_path).check(1e-12, 1e-11)


class Keeping(nn.Module):
    """Keeps a mean of what it sees: one buffer is replaced, one written to."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("mean", torch.ones(6))
        self.register_buffer("largest", torch.zeros(6))

    def forward(self, x):
        x = self.linear(x - self.mean)
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        self.largest.mul_(0.5).add_(x.detach().amax((0, 1)))
        return x


@pytest.mark.parametrize("mode", ExecutionMode)
def test_buffers_that_forward_changes_are_state(tmp_path, mode):
    torch.manual_seed(0)
    model = Keeping().double()
    batch = torch.randn(4, 3, 6).double(), torch.randn(100).double()
    beside = Beside(model, batch, step, tmp_path, mode)
    mean = model.mean
    machine = beside.machine()
    beside.ours(machine)
    step(model, batch)
    assert model.mean is not mean  # which recording did not do
    for name in ("mean", "largest"):
        ours = torch.from_numpy(machine.state[f"model/{name}"])
        torch.testing.assert_close(ours, getattr(model, name), rtol=1e-12, atol=1e-14)


def test_images_of_bytes_are_made_floats(tmp_path):
    class Bytes(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x):
            return self.linear(x.permute(0, 2, 1).float() / 255)

    batch = torch.randint(0, 256, (4, 6, 3), dtype=torch.uint8), torch.randn(100)
    beside = Beside(Bytes(), batch, step, tmp_path)
    beside.batch = (batch[0].int(), batch[1])  # as the run's streamers give it
    compiled, _ = beside.ours()
    beside.batch = batch
    assert compiled == pytest.approx(beside.theirs()[0].item(), rel=1e-5)


def test_a_sum_over_an_axis_of_one_row_does_not_add_to_what_lay_there(tmp_path):
    class Repeated(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.tensor([-1.0, 2.0], dtype=torch.float64))

        def forward(self, x):
            rows = (self.table * x.mean()).repeat(1, 1)
            return (rows.view(-1) * torch.tensor([0.5, 1.5], dtype=torch.float64)).sum() * 0.3

    def step(model, batch):
        model.zero_grad()
        loss = model(batch[0])
        loss.backward()
        return loss

    labels = torch.zeros(2, dtype=torch.int64)
    batch = torch.tensor([[0.75], [1.25]], dtype=torch.float64), labels
    Beside(Repeated(), batch, step, tmp_path).check(1e-12, 1e-11)
