"""Values whose shape depends on the batch: boolean masks as indices."""

import gc
import json
import re

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import CsrunError  # noqa: E402
from csrun.pytorch.loop import program_limits  # noqa: E402
from csrun.pytorch.step.variant import StepVariant  # noqa: E402

IGNORED = -100
COUNTS = (3, 3, 5, 3)  # of labels in the batches
MORE = ("counts", "checkpoints")  # ways to use a mask
slow = pytest.mark.slow


class Labelled(Kit):
    """Some labels are masked, a different number in each batch. counts: of the remaining ones."""

    def __init__(self, *layers, counts=COUNTS):
        super().__init__(*layers)
        x, y = (each[: 8 * len(counts)] for each in self.train.dataset.tensors)
        y = y.clone()
        for batch, count in enumerate(counts):
            y[8 * batch + torch.randperm(8)[count:]] = IGNORED
        self.train = DataLoader(TensorDataset(x, y), 8)
        x, y = (each[:12] for each in self.val.dataset.tensors)
        y = y.clone()
        y[::3] = IGNORED
        self.val = DataLoader(TensorDataset(x, y), 4)

    def passes(self, loss_of, count=3, batches=1, evaluates=True):
        """Losses of passes, each with an evaluation; a step may have several batches."""
        losses = []
        for _ in range(count):
            for number, (x, y) in enumerate(self.train, 1):
                loss = loss_of(self.model, x, y) / batches
                loss.backward()
                if number % batches == 0:
                    nn.utils.clip_grad_norm_(self.model.parameters(), 0.7)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                losses.append(loss.detach())
            self.model.eval()
            with torch.no_grad():
                losses += [loss_of(self.model, x, y) for x, y in self.val if evaluates]
            self.model.train()
        return losses


class OfLoop(Labelled):
    """The same without a loader of csrun."""

    def session(self, folder, **options):
        cbtorch.initialize(model_dir=folder, **options)
        self.model = cbtorch.module(self.model)
        return cbtorch.Session(self.model, self.optimizer, mode="train")


class OfLayer(OfLoop):
    """The same with a model that is not in a container."""

    def session(self, folder, **options):
        self.model = self.model[0]
        return super().session(folder, **options)


def recorded_steps(folder):
    found = json.loads((folder / "performance" / "performance.json").read_text())
    return found["recorded_steps"]


def masked(model, x, y):
    is_label = y != IGNORED
    return functional.cross_entropy(model(x)[is_label], y[is_label])


def by_places(model, x, y):
    places = (y != IGNORED).nonzero()
    rows = model(x).gather(0, places.expand(len(places), 4))
    (again,) = torch.where(y >= 0)
    return functional.cross_entropy(rows, y[places.view(-1)]) + rows[:, 1].sum() / len(again)


def by_elements(model, x, y):
    out, is_large = model(x), x[:, :4] > 0.5
    apart = (out[is_large] - x[:, :4][is_large]).pow(2).mean()
    return apart + torch.masked_select(out, x[:, :1] > 0).mean() + out[y > 1, 2].sum()


def twice(model, x, y):
    is_label = y != IGNORED
    labels = y[is_label]
    out = model(x[is_label])
    return (
        functional.cross_entropy(out, labels) + out[labels > 0].pow(2).sum() + masked(model, x, y)
    )


def of_distinct(model, x, y):
    classes = y.clamp_min(0).unique()
    repeated = model(x).repeat_interleave(y.clamp_min(0) % 3, 0)
    return model(x)[:, classes].pow(2).sum() + repeated.pow(2).sum()


def of_pairs(model, x, y):
    """Pairs of equal and of different classes, by uint8 masks."""
    same = (y[:, None] == y).byte()
    other = same ^ 1
    one, another = torch.where(same.fill_diagonal_(0))
    first, second = torch.where(other)
    out = model(x)
    near = (out[one] - out[another]).pow(2).sum(1)
    far = functional.relu(3 - (out[first] - out[second]).pow(2).sum(1))
    return near.sum() / 8 + far.sum() / 8


@pytest.mark.parametrize(
    "loss_of",
    [masked, pytest.param(by_places, marks=slow), pytest.param(by_elements, marks=slow),
     twice, of_distinct],
)  # fmt: skip
def test_the_loss_takes_what_a_mask_of_the_batch_leaves(tmp_path, loss_of):
    beside(lambda kit: kit.passes(loss_of), tmp_path, kit=Labelled)
    assert not recorded_steps(tmp_path), "each shape has its own program"


def test_the_loss_takes_pairs_by_masks_of_bytes(tmp_path):
    beside(lambda kit: kit.passes(of_pairs, evaluates=False), tmp_path, kit=Labelled)


class Masking(nn.Module):
    """Module that uses a mask of its input in one of the forms of `how`."""

    def __init__(self, how):
        super().__init__()
        self.first, self.last, self.how = nn.Linear(6, 9), nn.Linear(9, 4), how

    def forward(self, x):
        h, is_large = self.first(x).tanh(), x[:, 0] > 0
        places = is_large.nonzero()[:, 0]
        if self.how == "branches":
            h = h + (h[is_large].mean(0) if len(places) > 3 else h[is_large].sum(0))
        elif self.how == "counts":
            h = h / (1 + len(places))
        elif self.how == "writes":
            h = h.index_add(0, places, self.first(x[places]))
            h[places] = 0.5
        elif self.how == "checkpoints":
            h = h + checkpoint(lambda x: self.first(x)[x[:, 1] > 0].sum(0), x, use_reentrant=False)
        elif self.how == "draws":
            h = h + h[torch.rand_like(h[:, 0]) > 0.5].sum(0)
        return self.last(h)


@pytest.mark.parametrize(
    "how", ["branches", "writes", "draws", *(pytest.param(how, marks=slow) for how in MORE)]
)
def test_forward_takes_what_a_mask_of_the_batch_leaves(tmp_path, how):
    def loop(kit):
        torch.manual_seed(4)
        return kit.passes(lambda model, x, y: functional.cross_entropy(model(x), y))

    beside(loop, tmp_path, Masking(how), kit=Labelled, settings={"save_checkpoints_steps": 5})
    causes = list(recorded_steps(tmp_path))
    assert len(causes) == (how == "draws")
    assert all("shape of a result depends on random numbers" in cause for cause in causes)


class WithLoss(Masking):
    """Module that computes its loss and returns a part of its results."""

    def forward(self, x, y):
        out = super().forward(x)
        return functional.cross_entropy(out[y >= 0], y[y >= 0]), out[x[:, 1] > 0.5]


@pytest.mark.parametrize("fast", [True, False])
def test_the_loop_calls_the_model_on_tensors_of_its_own(tmp_path, fast):
    def loop(kit):
        model = kit.model if isinstance(kit.model, WithLoss) else kit.model[0]
        found = []
        for _ in range(4):
            for x, y in kit.train:
                kit.optimizer.zero_grad()
                loss, part = model(x, y)
                loss.backward()
                kit.optimizer.step()
                found += [loss.item(), len(part), part.detach().sum()]
        return found

    layer = WithLoss("")
    ours, theirs = OfLayer(layer), OfLayer(layer)
    with ours.session(tmp_path, fast=fast):
        found = [float(x) for x in loop(ours)]
    assert found == pytest.approx([float(x) for x in loop(theirs)], rel=1e-8)
    assert bool(recorded_steps(tmp_path)) == (not fast)


def test_batches_without_a_label_train_on_the_rest(tmp_path):
    def loss_of(model, x, y):
        out, is_label = model(x), y != IGNORED
        if not is_label.nonzero().numel():
            return out.pow(2).mean()
        return functional.cross_entropy(out[is_label], y[is_label], reduction="sum")

    def summed(model, x, y):
        is_label = y != IGNORED
        return (model(x)[is_label] ** 2).sum() + model(x).mean()

    def loop(kit):
        return kit.passes(loss_of) + kit.passes(summed)

    beside(loop, tmp_path, kit=Labelled, counts=(3, 0, 3, 3, 0, 3))


def test_the_mean_of_nothing_ends_the_run(tmp_path):
    kit = Labelled(counts=(3, 0, 3, 3, 3, 3))
    with pytest.raises(CsrunError, match="loss is nan"), kit.session(tmp_path):
        kit.passes(lambda model, x, y: model(x)[y >= 0].mean())


def test_a_step_of_several_batches_has_several_counts(tmp_path):
    beside(lambda kit: kit.passes(masked, 4, batches=2), tmp_path, kit=Labelled)
    assert not recorded_steps(tmp_path)


def test_recorded_steps_have_the_same_bits(tmp_path):
    found = []
    for fast in (True, False):
        kit = Labelled()
        with kit.session(tmp_path / str(fast), fast=fast):
            found.append([x.item() for x in kit.passes(twice, evaluates=False)])
        assert bool(recorded_steps(tmp_path / str(fast))) == (not fast)
    assert found[0] == found[1]


def test_a_metric_of_the_loop_has_no_program_of_its_own(tmp_path):
    found = []

    def with_metrics(model, x, y):
        out = model(x)
        found.append((out.argmax(1)[y == 1] == 1).sum().item())
        found.append(y[y > 1].sum())
        return functional.cross_entropy(out, y)

    def loop(kit):
        found.clear()
        return kit.passes(with_metrics) + found

    beside(loop, tmp_path, kit=Labelled)
    assert not recorded_steps(tmp_path)
    assert len(list(tmp_path.glob("tfcs_*"))) == 2


@pytest.mark.parametrize("kit", [Labelled, OfLoop])
def test_a_new_program_replaces_the_one_that_was_not_used_for_the_longest_time(
    tmp_path, monkeypatch, caplog, kit
):
    monkeypatch.setattr(program_limits, "MOST_GRAPHS", 3)
    kept = []

    def loop(kit):
        losses = kit.passes(masked, count=2)
        gc.collect()
        kept.append(sum(type(each) is StepVariant and each.trains for each in gc.get_objects()))
        return [*losses, *kit.passes(masked, count=1)]

    before = sum(type(each) is StepVariant and each.trains for each in gc.get_objects())
    beside(loop, tmp_path, kit=kit, counts=(1, 2, 3, 4, 5, 3))
    assert kept[0] - before <= 4  # one of them is a program's store
    (warning,) = (r.message for r in caplog.records if "had more than 3 programs" in r.message)
    assert re.match(r"/.*/test_batch_shapes.py:\d+: .*, one for each ", warning)


class Matching(nn.Module):
    """Loss that assigns targets by the values of outputs, as DETR does."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x):
        out = self.layer(x)
        chosen = [torch.as_tensor(row.argsort()[:2]) for row in out.detach().numpy()]
        rows = torch.cat([torch.full_like(each, n) for n, each in enumerate(chosen)])
        wanted = torch.full((len(x), 4), 0.5, dtype=x.dtype)
        wanted[rows, torch.cat(chosen)] = x[:, :2].flatten()
        return out - wanted


def test_targets_are_written_by_indices_that_forward_computes_of_outputs(tmp_path):
    beside(lambda kit: kit.train_once(), tmp_path, Matching())
