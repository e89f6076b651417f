"""What PyTorch's users write around a training: its numbers are PyTorch's, or it is refused."""

import copy
from collections import OrderedDict
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402


def validated(kit, of_output, mode=torch.no_grad):
    """Three passes of training, each with a validation: what it gives of the whole."""
    found = []
    for _ in range(3):
        kit.model.train()
        found += kit.train_once()
        kit.model.eval()
        with mode():
            outs, labels = zip(*[(kit.model(x), y) for x, y in kit.val], strict=True)
        found += [x.item() for x in of_output(torch.cat(outs), torch.cat(labels))]
    return found


def of_determination(out, y):
    """R squared: a value that is used twice, itself and its mean."""
    out = out[:, 0]
    return [((y - out) ** 2).sum() / ((out - out.mean()) ** 2).sum(), (out - y).abs().mean()]


class Halves(Kit):
    """Two batches are a validation: the first three of them are recorded."""

    def __init__(self, *layers, **options):
        super().__init__(*layers, **options)
        self.val = DataLoader(self.val.dataset, 10)


def test_a_value_that_two_others_are_made_of_is_computed_once(tmp_path):
    beside(lambda kit: validated(kit, of_determination), tmp_path, kit=Halves)


def test_inference_mode_is_no_grad(tmp_path):
    beside(lambda kit: validated(kit, of_determination, torch.inference_mode), tmp_path)
    with torch.inference_mode():
        assert torch.is_inference_mode_enabled()


def test_a_function_may_be_one_of_inference_mode_alone(tmp_path):
    @torch.inference_mode()
    def hits(kit):
        return sum((kit.model(x).argmax(1) == y).sum().item() for x, y in kit.val)

    def loop(kit):
        return [*kit.train_once(), hits(kit), *kit.train_once(), hits(kit)]

    beside(loop, tmp_path)


def test_what_has_a_shape_of_numbers_is_computed_of_them(tmp_path):
    def loop(kit):
        found = kit.train_once()
        kit.model.eval()
        for x, y in kit.val:
            with torch.no_grad():
                out = kit.model(x)
            hit = out.argmax(1)
            found += [out[y == 1].sum().item(), *torch.bincount(hit, minlength=4).tolist()]
            found += (hit != y).nonzero().flatten().tolist()
        return found

    beside(loop, tmp_path)


def test_a_loss_of_what_a_mask_leaves_is_refused(tmp_path):
    kit = Kit()
    kit.criterion = lambda out, y: f.cross_entropy(out[y > 0], y[y > 0])
    said = r"loops.py:\d+: .* use torch.where, or"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    hidden: torch.Tensor | None = None


class Named(OrderedDict):
    def __getattr__(self, name):
        return self[name]


class Giving(nn.Module):
    """A network that computes its loss, and gives it by name."""

    def __init__(self, kind):
        super().__init__()
        self.inner, self.kind = nn.Linear(6, 4), kind

    def forward(self, x, y):
        logits = self.inner(x)
        return self.kind(loss=f.cross_entropy(logits, y), logits=logits)


@pytest.mark.parametrize("kind", [Output, Named, dict], ids=lambda kind: kind.__name__)
def test_forward_gives_a_dataclass_or_a_dict_of_its_own(tmp_path, kind):
    def loop(kit):
        found, (model,) = [], kit.model
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            out = kit.model(x, y)
            loss, logits = (out["loss"], out["logits"]) if kind is dict else (out.loss, out.logits)
            assert type(out) is kind
            loss.backward()
            kit.optimizer.step()
            found += [loss.item(), logits.argmax(1).sum().item()]
        assert model.kind is kind
        return found

    class Kept(Kit):
        def __init__(self):
            super().__init__(Giving(kind))
            self.model.forward = lambda *given: self.model[0](*given)

    beside(loop, tmp_path, kit=Kept)


class Collecting(nn.Module):
    """A network that collects outputs in a tensor of its own, and its loss in another."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, x, y):
        outs, loss = x.new_zeros(len(x), 2, 4), torch.zeros((), dtype=torch.float64)
        rows = torch.zeros(len(x), 2, 4, dtype=torch.float64)
        for place in range(2):
            outs[:, place] = rows[:, place] = self.inner(x * (place + 1)).tanh()
            loss += f.cross_entropy(outs[:, place], y)
        return loss, rows


def test_forward_writes_into_tensors_that_it_makes(tmp_path):
    def loop(kit):
        found = []
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            loss, rows = kit.model(x, y)
            loss.backward()
            kit.optimizer.step()
            found += [loss.item(), rows.abs().mean().item()]
        return found

    class Kept(Kit):
        def __init__(self):
            super().__init__(Collecting())
            self.model.forward = lambda *given: self.model[0](*given)

    beside(loop, tmp_path, kit=Kept)


def test_a_recorded_steps_loss_is_saved_and_copied(tmp_path):
    def loop(kit):
        (x, y) = next(iter(kit.train))
        loss = kit.criterion(kit.model(x), y)
        loss.backward()
        kit.optimizer.step()
        torch.save({"loss": loss}, tmp_path / "losses.pt")
        return [torch.load(tmp_path / "losses.pt")["loss"].item(), copy.deepcopy(loss.detach())]

    beside(loop, tmp_path / "model_dir")


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomalies_may_be_looked_for(tmp_path):
    def loop(kit):
        with torch.autograd.set_detect_anomaly(True):
            return kit.train_once()

    beside(loop, tmp_path)


class Keeping(nn.Module):
    """A network that keeps a value of its own."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 9), nn.Linear(9, 4)

    def forward(self, x):
        self.hidden = self.inner(x).tanh()
        return self.outer(self.hidden)


def reads_it(kit):
    kit.train_once()
    return kit.model[0].hidden.detach().mean().item()


def trains_by_it(kit):
    kit.criterion = lambda out, y: f.cross_entropy(out, y) + kit.model[0].hidden.square().mean()
    kit.train_once()


@pytest.mark.parametrize("loop", [reads_it, trains_by_it], ids=lambda loop: loop.__name__)
def test_what_forward_keeps_for_itself_is_refused(tmp_path, loop):
    kit = Kit(Keeping())
    said = r"loops.py:\d+: .*return it from forward"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        loop(kit)


def test_weights_that_are_loaded_amid_a_training_are_refused_in_a_line(tmp_path):
    kit = Kit()
    weights = {name: x.clone() for name, x in kit.model.state_dict().items()}
    said = r"loops.py:\d+: load_state_dict of the model must be"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.model.load_state_dict(weights)
        kit.train_once()
        kit.model.load_state_dict(weights)
    kit.model.load_state_dict(weights)


def test_a_copy_of_the_model_takes_tensors_of_the_loops_own(tmp_path):
    def loop(kit):
        (x, _), found = kit.train.dataset.tensors, []
        for _ in range(2):
            found += kit.train_once()
            with torch.no_grad():
                found += copy.deepcopy(kit.model)(x).argmax(1).tolist()
        return found

    beside(loop, tmp_path / "copy")
    kit = Kit()
    said = r"loops.py:\d+: the model is called on tensors that are not .* call copy.deepcopy"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path / "itself"):
        kit.train_once()
        kit.model(kit.train.dataset.tensors[0])


def taught(kit, change=lambda teacher: None):
    """Distillation: a teacher whose parameters require gradients is called under no_grad."""
    torch.manual_seed(5)
    teacher = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).double().eval()
    found = []
    for _ in range(3):
        for x, _ in kit.train:
            with torch.no_grad():
                aim = teacher(x).softmax(1)
            kit.optimizer.zero_grad()
            loss = f.kl_div(f.log_softmax(kit.model(x), 1), aim, reduction="batchmean")
            loss.backward()
            kit.optimizer.step()
            found.append(loss.detach())
        with torch.no_grad():
            change(teacher)
    return found


def test_a_teacher_is_called_under_no_grad(tmp_path):
    beside(taught, tmp_path)


def test_a_teacher_that_changes_is_refused(tmp_path):
    kit = Kit()
    said = r"uses has changed since step 1"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        taught(kit, lambda teacher: teacher[0].weight.mul_(2))


class Attending(nn.Module):
    """A network with dropout, and a buffer of integers that forward cuts."""

    def __init__(self):
        super().__init__()
        self.places, self.inner = nn.Embedding(9, 6), nn.Linear(6, 4)
        self.register_buffer("numbers", torch.arange(9)[None])

    def forward(self, x):
        x = x + self.places(self.numbers[:, : x.shape[0]])[0]
        x = f.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.0)[0]
        return self.inner(f.dropout(x, 0.0))


def test_a_value_of_a_recorded_step_is_made_of_a_buffer_of_integers(tmp_path):
    def loop(kit):
        return validated(kit, lambda out, y: [(out.argmax(1) == y).sum()])

    beside(loop, tmp_path, Attending())


def prefetched(kit, when):
    batches = iter(kit.train)
    x, y = next(batches)
    for step in range(5):
        loss = kit.criterion(kit.model(x), y)
        if when(step):
            x, y = next(batches)
        loss.backward()
        kit.optimizer.step()
        kit.optimizer.zero_grad()
        if not when(step):
            x, y = next(batches)


def double_buffered(kit):
    batches = iter(kit.train)
    (x, _), _ = next(batches), next(batches)
    kit.model(x)


def evaluated_before_use(kit):
    x, _ = next(iter(kit.train))
    kit.model.eval()
    with torch.no_grad():
        assert [kit.model(x).sum().item() for x, _ in kit.val]
    kit.model.train()
    kit.model(x)


def comparing(kit):
    last = 0.0
    for x, y in kit.train:
        out = kit.model(x)
        (kit.criterion(out, y) + (out - last).square().mean()).backward()
        kit.optimizer.step()
        kit.optimizer.zero_grad()
        last = out.detach()


def made_before(kit):
    kit.train = DataLoader(kit.train.dataset, 8)
    kit.train_once()


def annealed(kit):
    for step, (x, y) in enumerate(kit.train):
        (kit.criterion(kit.model(x), y) * (1 + step // 3)).backward()
        kit.optimizer.step()
        kit.optimizer.zero_grad()


def scaled(kit):
    scaler = torch.amp.GradScaler("cpu")
    for x, y in kit.train:
        scaler.scale(kit.criterion(kit.model(x), y)).backward()
        scaler.step(kit.optimizer)


def shifted(kit):
    for step, (x, y) in enumerate(kit.train):
        kit.criterion(kit.model(x + step // 3), y).backward()
        kit.optimizer.step()
        kit.optimizer.zero_grad()


def flipped(kit):
    for step, (x, y) in enumerate(kit.train):
        kit.criterion(kit.model(x if step < 3 else x.flip(0)), y).backward()
        kit.optimizer.step()
        kit.optimizer.zero_grad()


def twice(kit):
    for x, y in kit.train:
        kit.criterion(kit.model(x), y).backward()
        kit.optimizer.step()
        kit.optimizer.zero_grad()
        kit.model(x).sum().item()


LATE = r"backward\(\) is called on a value of a finished step"
AHEAD = "a batch is used after the next one was taken"
EARLIER = "a value of an earlier step is an input of this one"


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (lambda kit: prefetched(kit, lambda step: True), LATE),
        (lambda kit: prefetched(kit, lambda step: step == 4), LATE),
        (double_buffered, AHEAD),
        (evaluated_before_use, AHEAD),
        (comparing, EARLIER),
        (made_before, "tensors that are not of the Session's batch"),
        (annealed, "mul in .* is not called as it was.*as an attribute of the model"),
        (scaled, r"GradScaler\(enabled=False\)"),
        (shifted, "the model's input is not computed as in step 1 .add in"),
        (flipped, "argument 0 of the model is another tensor than in step 1"),
        (twice, "the model is called more often than in step 1, or after optimizer.step"),
    ],
)
def test_a_loop_that_is_refused_is_told_why(tmp_path, loop, said):
    kit = Kit()
    with pytest.raises(UsageError, match=rf"loops.py:\d+: .*{said}"), kit.session(tmp_path):
        loop(kit)


class Carrying(nn.Module):
    """A recurrent network that takes its state, and an option."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 4), nn.Linear(4, 4)

    def forward(self, x, state, scale=1.0):
        state = torch.tanh(self.inner(x) + self.outer(state)) * scale
        return state, state


def carrying(kit):
    state = torch.zeros(8, 4, dtype=torch.float64)
    for x, _ in kit.train:
        _, state = kit.model(x, state.detach())


def growing(kit):
    state = torch.zeros(8, 4, dtype=torch.float64)
    for step, (x, y) in enumerate(kit.train):
        kit.criterion(kit.model(x, state, 1.0 + step // 3)[0], y).backward()
        kit.optimizer.step()
        kit.optimizer.zero_grad()


@pytest.mark.parametrize(
    ("loop", "said"),
    [(carrying, EARLIER), (growing, "argument 2 of the model is 2.0, and was 1.0 in step 1")],
)
def test_an_argument_of_the_model_that_is_refused_is_told_why(tmp_path, loop, said):
    kit = Kit(Carrying())
    kit.model.forward = lambda *given: kit.model[0](*given)
    with pytest.raises(UsageError, match=rf"loops.py:\d+: {said}"), kit.session(tmp_path):
        loop(kit)


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


def test_a_dataloader_made_within_the_block_is_warned_of(tmp_path, caplog):
    kit = Kit()
    with kit.session(tmp_path):
        kit.train = cbtorch.dataloader(DataLoader(kit.val.dataset, 4))
        kit.train_once()
    assert "call cbtorch.dataloader(...) before the first Session's block" in caplog.text
