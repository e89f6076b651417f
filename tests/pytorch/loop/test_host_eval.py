"""Computations of a loop on losses, outputs and their sums, as with PyTorch's tensors."""

import copy
import io
import json
import math
from itertools import chain

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402
from csrun.pytorch.user import SessionLoader  # noqa: E402
from csrun.runtime.chief.cpu import CpuProgram  # noqa: E402
from csrun.runtime.chief.training import step_orders  # noqa: E402


def test_a_result_is_moved_to_the_cpu_without_being_computed(tmp_path):
    kit = Kit()
    with kit.session(tmp_path):
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            count = y.ne(0).sum()
            assert count.to("cpu") is count
            assert count.to(torch.device("cpu"), torch.int64) is count
            assert count.to(torch.float32).dtype is torch.float32
            kit.criterion(kit.model(x), y).backward()
            kit.optimizer.step()
    performance = json.loads((tmp_path / "performance/performance.json").read_text())
    assert not performance["synchronizations"]


def evaluate(kit, each):
    kit.model.eval()
    with torch.no_grad():
        for x, y in kit.val:
            each(kit.model(x), y)


def hits_from_zero(kit):
    """Sums that start as Python numbers, in training and in each evaluation."""
    found = []
    for _ in range(3):
        kit.model.train()
        total = hits = seen = 0
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            out = kit.model(x)
            loss = kit.criterion(out, y)
            loss.backward()
            kit.optimizer.step()
            total += loss.detach() * y.size(0)
            hits += (out.argmax(1) == y).sum()
            seen += y.size(0)
        correct = [0, 0.0]

        def count(out, y, correct=correct):
            _, predicted = torch.max(out.data, 1)
            correct[0] += (predicted == y).sum()
            correct[1] += (predicted == y).type(torch.float).sum().item()

        evaluate(kit, count)
        found += [total / seen, hits / seen, *correct]
    return found


def hits_in_a_tensor(kit):
    """Value computed before `optimizer.step()` and added to a tensor after it."""
    hits = torch.zeros((), dtype=torch.int64)
    for x, y in kit.train:
        kit.optimizer.zero_grad()
        out = kit.model(x)
        correct = (out.argmax(1) == y).sum()
        kit.criterion(out, y).backward()
        kit.optimizer.step()
        hits += correct
    return [hits]


def predictions(kit):
    """Outputs and labels collected in lists and read after the loop."""
    kit.train_once()
    outs, labels = [], []
    evaluate(kit, lambda out, y: (outs.append(out.softmax(1)), labels.append(y)))
    return [*torch.cat(outs).flatten(), *torch.cat(labels)]


def at_once(kit):
    """Outputs read in their step by tolist(), numpy() and formatting, from the first step on."""
    found = kit.train_once()

    def read(out, y):
        found.extend(y.tolist())
        found.extend(out.argmax(1).tolist())
        found.extend(out.softmax(1).cpu().numpy()[0])
        found.extend(np.asarray(out)[-1])
        found.append(f"{kit.criterion(out, y):.9f}")

    evaluate(kit, read)
    return found


def held(kit):
    """Outputs of earlier and later steps, read after the weights have changed."""
    outs = []
    for _ in range(2):
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            outs.append(kit.model(x).sum(1))
            kit.criterion(kit.model(x), y).backward()
            kit.optimizer.step()
            kit.model.state_dict()
    return torch.stack(outs).detach().flatten()


def losses(kit):
    found = kit.train_once() + kit.train_once()
    last, file = found[-1], io.BytesIO()
    assert all(isinstance(loss, torch.Tensor) and torch.is_tensor(loss) for loss in found)
    assert (last.dtype, last.shape, last.dim()) == (torch.float64, torch.Size([]), 0)
    assert last.device == torch.device("cpu")
    assert not last.requires_grad
    assert not any(map(math.isnan, found))
    assert bool(torch.isfinite(torch.stack(found)).all())
    torch.save({"losses": found}, file)
    file.seek(0)
    saved = torch.load(file)["losses"]
    return [
        *(torch.stack(found).mean(), torch.tensor(found).sum(), sum(found) / len(found)),
        *(max(found), min(found), np.mean([loss.item() for loss in found]), saved[4], saved[-1]),
        *(copy.deepcopy(found)[-2], copy.copy(last), last.clone(), last.cpu().numpy()),
        *(float(f"{last:.4f}"), float(f"{last.item():.3e}"), np.asarray(last)),
    ]


def in_dicts(kit):
    """Batches moved if they are tensors; backward() with retain_graph."""
    found = []
    for _ in range(2):
        for batch in kit.train:
            named = zip("xy", batch, strict=True)
            x, y = (v.to("cpu") for _, v in named if isinstance(v, torch.Tensor))
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y)
            assert loss.requires_grad
            loss.backward(retain_graph=True)
            kit.optimizer.step()
            found.append(loss)
    return [loss.detach() for loss in found]


def smoothed(kit):
    """Moving average updated in place, read through a product each time."""
    mean, found = None, []
    for loss in [*kit.train_once(), *kit.train_once()]:
        mean = loss.clone() if mean is None else mean.mul_(0.9).add_(loss, alpha=0.1)
        found.append(mean * 1)
    return found


def given_a_parameter(kit):
    """Parameter of the loop, written between steps."""
    scale, found = nn.Parameter(torch.zeros(4, dtype=torch.float64)), []
    for step, (x, y) in enumerate(chain(kit.train, kit.train)):
        kit.optimizer.zero_grad()
        out = kit.model(x)
        kit.criterion(out, y).backward()
        kit.optimizer.step()
        found.append((out.detach() * scale).sum(0).detach())
        with torch.no_grad():
            scale[step % 4] += 1
    return torch.cat(found)


def drawn(kit):
    """Samples drawn from outputs by PyTorch's generator, between other draws."""
    torch.manual_seed(7)
    found = []
    for x, y in chain(kit.train, kit.train):
        kit.optimizer.zero_grad()
        out = kit.model(x)
        kit.criterion(out, y).backward()
        kit.optimizer.step()
        p = out.detach().softmax(1)
        found += [torch.multinomial(p, 1)[:, 0], torch.rand(1), torch.randn_like(p)[0]]
        found += [nn.functional.dropout(p)[0], torch.rand(1), torch.bernoulli(p)[0]]
    return torch.cat([numbers.double() for numbers in found])


def kept_as_they_are(kit):
    """Losses of some steps are kept; attributes set on tensors must not appear on later ones."""
    kept, found = [], []
    for _ in range(4):
        for step, (x, y) in enumerate(kit.train):
            kit.optimizer.zero_grad()
            out = kit.model(x)
            loss = kit.criterion(out, y)
            loss.backward()
            kit.optimizer.step()
            found += [hasattr(each, "seen_in") for each in (x, out, loss)]
            if step % 2:
                x.seen_in = out.seen_in = loss.seen_in = step
            if step % 3:
                kept.append(loss)
    return [*found, *(loss.item() for loss in kept)]


LOOPS = (
    kept_as_they_are,
    given_a_parameter,
    drawn,
    hits_from_zero,
    hits_in_a_tensor,
    predictions,
    at_once,
    held,
    losses,
    in_dicts,
    smoothed,
)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
def test_values_are_pytorchs(tmp_path, loop):
    beside(loop, tmp_path)


def test_values_kept_in_each_step_need_few_orders(tmp_path, monkeypatch):
    """One order per epoch and batch shape, apart from the first steps."""
    orders, run = [], CpuProgram.run

    def counted(program, steps):
        orders.append(steps.count)
        return run(program, steps)

    def kept(kit):
        found, hits, outs = [], 0, []
        for _ in range(8):
            for x, y in kit.train:
                kit.optimizer.zero_grad()
                out = kit.model(x)
                loss = kit.criterion(out, y)
                loss.backward()
                kit.optimizer.step()
                found.append(loss)
                outs.append(out.detach())
                hits += (out.argmax(1) == y).sum()
            found.append(hits / len(outs))
        return [*map(torch.Tensor.detach, found), *torch.cat(outs).flatten()]

    monkeypatch.setattr(CpuProgram, "run", counted)
    monkeypatch.setattr(step_orders, "ORDER_S", 1e6)
    beside(kept, tmp_path)
    assert sum(orders) == 48
    assert len(orders) < 16


def test_outputs_that_are_kept_detached_may_be_read_in_the_end(tmp_path):
    """Outputs of an inner layer, too, with a short last batch; the loop only keeps them."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(6, 9), nn.Linear(9, 4)

        def forward(self, x):
            inner = self.first(x).tanh()
            return self.last(inner), inner

    def kept(kit):
        found = []
        loader = DataLoader(kit.train.dataset, 7, shuffle=False)
        kit.train = cbtorch.dataloader(loader) if isinstance(kit.train, SessionLoader) else loader
        for _ in range(2):
            for x, y in kit.train:
                kit.optimizer.zero_grad()
                out, inner = kit.model(x)
                kit.criterion(out, y).backward()
                kit.optimizer.step()
                found.append(inner.detach())
        return torch.cat(found).flatten()

    beside(kept, tmp_path, Inner())


def test_values_of_the_first_steps_may_be_read_behind_the_block(tmp_path):
    def kept(kit):
        outs = []
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            outs.append(kit.model(x))
            kit.criterion(outs[-1], y).backward()
            kit.optimizer.step()
        return outs[:3]

    ours, theirs = Kit(), Kit()
    with ours.session(tmp_path):
        found = kept(ours)
    for one, other in zip(found, kept(theirs), strict=True):
        torch.testing.assert_close(one.detach() * 1, other.detach(), rtol=1e-10, atol=1e-12)


def test_a_write_into_a_view_of_what_waits_is_refused(tmp_path):
    kit = Kit()
    said = r"test_host_eval.py:[0-9]+: mul_ writes into .* a view"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kept = torch.stack(kit.train_once())
        kept[0].mul_(2)


def best_of(kit):
    """Operators that csrun lacks: top two values, their order, running sums."""
    found = []
    for x, y in kit.train:
        kit.optimizer.zero_grad()
        logits = kit.model(x)
        kit.criterion(logits, y).backward()
        kit.optimizer.step()
        best = logits.topk(2)
        found += [(best.indices == y[:, None]).any(1).sum().item(), best.values.sum().item()]
        found.append(logits.sort(1).values.cumsum(1)[0, 1].item())
    return found


def test_metrics_of_training_steps_are_computed_on_the_host(tmp_path):
    beside(best_of, tmp_path)


def test_a_detached_loss_is_written_in_place_after_its_step(tmp_path):
    """Earlier sums keep the value from before the write."""

    def loop(kit):
        found, last = [], None
        for x, y in kit.train:
            loss = kit.criterion(kit.model(x), y)
            if last is not None:
                last -= 3  # in the next step
                found.append(last)
            kit.update(loss)
            last = loss.detach()
            double = last * 2
            last *= 100
            found += [double, last + 1]
        return [*found, float(f"{last:.9f}"), last.item()]

    beside(loop, tmp_path)


def test_a_loss_with_views_is_not_written(tmp_path):
    kit = Kit()
    said = r"test_host_eval.py:\d+: mul_ writes into a value of the step, or into a view of one"
    with kit.session(tmp_path), pytest.raises(UsageError, match=said):
        for loss in kit.train_once()[-1:]:
            view = loss[None]
            loss *= 2
            view.item()
