"""A loss computed by the loop, from slices and transposes of the model's output."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

import copy  # noqa: E402
import json  # noqa: E402

from support.script_loops import ScriptKit  # noqa: E402
from support.torch_loops import Kit, beside, marked_line  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402


def of_transposes(out, y):
    z = functional.normalize(out, dim=1)
    return functional.cross_entropy(z @ z.T, torch.arange(8)) + (z.mT @ z).real.square().mean()


def of_rows(out, y):
    return sum(row.square().mean() for row in out)


def of_pairs(out, y):
    return sum(functional.cross_entropy(p, q) for p, q in zip(out, y, strict=True))


def of_unpacked(out, y):
    mean, variance, *rest = out
    return (mean - variance.exp()).square().mean() + rest[0].mean()


def of_broadcast(out, y):
    first, second = torch.broadcast_tensors(out[:, :2], out[:, 2:])
    return (first * second).mean()


def of_a_sum(out, y):
    loss = torch.tensor(0.0, dtype=torch.float64)
    for row, label in zip(out, y, strict=True):
        loss += functional.cross_entropy(row, label)
    return loss


def of_whole_slices(out, y):
    with torch.no_grad():  # as the layers of a teacher
        target = functional.linear(out[:, slice(0, None)], torch.ones(1, 4, dtype=out.dtype))
    return functional.cross_entropy(out[...], y) + (out.sum(1, True) - target / 2).square().mean()


def train(kit, loss_of):
    losses = []
    for x, y in kit.train:
        kit.optimizer.zero_grad()
        loss = loss_of(kit.model(x), y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


TOKENS = [of_transposes, of_rows, of_pairs, of_unpacked, of_broadcast, of_whole_slices]


@pytest.mark.parametrize("loss_of", [*TOKENS, of_a_sum])
def test_it_is_pytorchs(tmp_path, loss_of, caplog):
    caplog.set_level("INFO", "csrun")
    beside(lambda kit: train(kit, loss_of), tmp_path)
    assert ("step is recorded" in caplog.text) == (loss_of not in TOKENS)


def test_a_hook_on_a_value_is_refused(tmp_path):
    def hooked(out, y):
        out.register_hook(lambda g: g * 0.5)
        return functional.cross_entropy(out, y)

    said = r"test_tokens.py:\d+: a hook on a value of the loop would run in the first steps"
    kit = Kit()
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        train(kit, hooked)


def test_a_recorded_steps_loss_is_saved_and_copied(tmp_path):
    def loop(kit):
        (x, y) = next(iter(kit.train))
        loss = kit.criterion(kit.model(x), y)
        loss.backward()
        kit.optimizer.step()
        torch.save({"loss": loss}, tmp_path / "losses.pt")
        return [torch.load(tmp_path / "losses.pt")["loss"].item(), copy.deepcopy(loss.detach())]

    beside(loop, tmp_path / "model_dir")


def test_conversions_that_change_nothing_are_none(tmp_path):
    def loop(kit):
        losses = []
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            losses.append(kit.criterion(kit.model(x.to("cpu").contiguous()), y.long()))
            losses[-1].backward()
            kit.optimizer.step()
        return [loss.detach() for loss in losses]

    beside(loop, tmp_path)


@pytest.mark.parametrize("cut", [slice(1, 3), slice(0, None)], ids=["some columns", "all"])
def test_parts_of_an_output_are_made_contiguous(tmp_path, cut):
    """As in sequence models: out[:, 1:].contiguous().view(-1, classes)."""

    def loss_of(out, y):
        part = out[:, cut]
        if not part.is_contiguous():
            assert part.stride() == (4, 1)
        flat = part.contiguous().view(-1)
        return (flat - y.repeat_interleave(part.size(1))).square().mean()

    beside(lambda kit: train(kit, loss_of), tmp_path)
    found = json.loads((tmp_path / "performance" / "performance.json").read_text())
    assert not found["recorded_steps"]


def test_conversions_are_those_that_the_script_has_set(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)

    def loss_of(out, y):
        loss = functional.cross_entropy(out, y)
        loss += out.softmax(1).float().square().mean()
        return loss

    beside(lambda kit: train(kit, loss_of), tmp_path)


def test_rows_that_the_loop_writes_into_its_own_tensor_are_kept(tmp_path):
    """They are part of the loss, and read before and after the update."""

    def loop(kit):
        found = []
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            each = torch.zeros(len(y), dtype=torch.float64)
            for n, row in enumerate(kit.model(x)):
                each[n] = functional.cross_entropy(row, y[n])
            found.append(each.max().item())
            each.mean().backward()
            found += each.tolist() + each[2:].tolist() + each.numpy(force=True).tolist()
            found.append(float(f"{each[1]:.9f}"))
            found.append(float(repr(each).partition("[")[2].partition(",")[0]) > 0)  # no nan
            kit.optimizer.step()
            found += each.tolist()
        return found

    beside(loop, tmp_path)


def test_a_detached_created_tensor_shares_its_memory(tmp_path):
    """Writes after the update and in the next step are visible in all of its aliases."""

    def loop(kit):
        found, earlier = [], []
        for x, y in kit.train:
            out, each = kit.model(x), torch.zeros(len(y), dtype=torch.float64)
            for n, row in enumerate(out):
                each[n] = functional.cross_entropy(row, y[n])
            for one in earlier:
                one.add_(1)
            before, part = each.detach(), each[2:4].detach()
            kit.update(each.mean())
            with torch.no_grad():
                each.mul_(2)
                before.sub_(1)
                part.mul_(3)
            found += [*before.tolist(), *part.tolist(), *each.tolist()]
            found += [x.sum() for x in (*earlier, part + 0)]
            earlier = [before, part]
        return found

    beside(loop, tmp_path)


CREATED = [
    lambda out: torch.zeros(()).double(),
    lambda out: torch.zeros(()).to(out),
    lambda out: torch.zeros((), dtype=out.dtype).clone(),
    lambda out: torch.zeros((), dtype=out.dtype) * 1,
    lambda out: torch.as_tensor(0.0, dtype=out.dtype),
    lambda out: torch.zeros(()),  # float32, in a model of float64
]


@pytest.mark.parametrize("created", [CREATED, [lambda out: 0] * 4 + CREATED[-2:]])
def test_a_sum_may_begin_with_any_new_tensor(tmp_path, created):
    """Also if it is first created in a later step, and is only a part of the loss."""

    def loop(kit):
        losses = []
        for (x, y), create in zip(kit.train, created, strict=True):
            out = kit.model(x)
            terms = create(out)
            for row, label in zip(out, y, strict=True):
                terms += functional.cross_entropy(row, label)
            losses.append(kit.update(terms + out.square().mean()))
        return losses

    beside(loop, tmp_path, rel=1e-6)


def test_floats_are_not_written_into_integers(tmp_path):
    """PyTorch raises an error, too."""

    def summed(out, y):
        loss = torch.zeros((), dtype=torch.int64)
        loss += functional.cross_entropy(out, y)
        return loss

    kit = Kit()
    said = r"test_tokens.py:\d+: a result of torch.float64 is written into a tensor of torch.int64"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        train(kit, summed)


class ListKit(Kit):
    """Kit whose Session has lists."""

    def session(self, folder):
        super().session(folder)
        return cbtorch.Session([self.model], [self.optimizer], mode="train")


@pytest.mark.parametrize("kit", [ListKit, ScriptKit])
def test_terms_may_be_written_into_a_tensor_created_before_the_call_of_the_model(tmp_path, kit):
    def loop(kit):
        found = []
        for x, y in kit.train:
            each = torch.zeros(len(y), dtype=torch.float64)
            out = kit.model(x)
            for n, row in enumerate(out):
                each[n] = functional.cross_entropy(row, y[n])
            found.append(kit.update(each.mean() + out.square().mean()))
            found.append(each)
        return [x for each in found for x in each.detach().view(-1)]

    beside(loop, tmp_path, kit=kit)


@pytest.mark.parametrize("is_loss", [True, False])
def test_a_loss_in_a_tensor_of_an_earlier_step_is_refused(tmp_path, is_loss):
    """Its gradient would be lost; a metric may be written there."""

    def loop(kit):
        total, losses = torch.zeros((), dtype=torch.float64), []
        for x, y in kit.train:
            out = kit.model(x)
            total = total.detach()
            total += functional.cross_entropy(out, y)  # here
            loss = out.square().mean()
            losses.append(kit.update(loss + total * 2 if is_loss else loss))
        return [total.item(), *losses]

    if not is_loss:
        beside(loop, tmp_path)
        return
    said = rf"test_tokens.py:{marked_line(loop)}: the loss is computed in a tensor that was not"
    kit = Kit()
    with pytest.raises(UsageError, match=rf"{said}.*loss = 0.*torch.stack"), kit.session(tmp_path):
        loop(kit)


class Attending(nn.Module):
    """Network with dropout, and an integer buffer that forward slices."""

    def __init__(self):
        super().__init__()
        self.places, self.inner = nn.Embedding(9, 6), nn.Linear(6, 4)
        self.register_buffer("numbers", torch.arange(9)[None])

    def forward(self, x):
        x = x + self.places(self.numbers[:, : x.shape[0]])[0]
        x = functional.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.0)[0]
        return self.inner(functional.dropout(x, 0.0))


def test_a_value_is_made_of_a_buffer_of_integers(tmp_path):
    def loop(kit):
        kit.model.eval()
        with torch.no_grad():
            return [(kit.model(x).argmax(1) == y).sum().item() for x, y in kit.val]

    beside(loop, tmp_path, Attending())
