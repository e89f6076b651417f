"""Loops whose steps differ: each step is recorded, and its program found by its graph."""

import gc
import json
import random

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402
from csrun.pytorch.loop import variant_cache  # noqa: E402


class LayerDrop(nn.Module):
    """Skips its first layer in some steps, by Python's generator."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.last(x if random.random() < 0.4 else self.first(x).tanh())


class MiddleDrop(nn.Module):
    """Skips the layer between two others; a layer is never used."""

    def __init__(self):
        super().__init__()
        self.first, self.unused, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.middle = nn.Linear(6, 6)

    def forward(self, x):
        x = self.first(x)
        return self.last(x if random.random() < 0.4 else self.middle(x).tanh())


class Counter(LayerDrop):
    """Scales its result by how often it was called."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return self.last(self.first(x)) * (1 + self.calls % 3)


class OfBatch(LayerDrop):
    """Has a layer more for batches of a positive sum."""

    def forward(self, x):
        return self.last(self.first(x).tanh() if x.sum() > 0 else x)


class OfWeights(LayerDrop):
    """Halves values that have become large."""

    def forward(self, x):
        h = self.first(x)
        if h.abs().max().item() > 2:
            h = h * 0.5
        return self.last(h)


def one_pass(kit):
    random.seed(5)
    return kit.train_once()


@pytest.mark.parametrize("layer", [LayerDrop, MiddleDrop, Counter, OfBatch, OfWeights])
@pytest.mark.parametrize("fast", [True, False])
def test_forward_may_compute_something_else_in_each_step(tmp_path, layer, fast):
    torch.manual_seed(1)
    beside(one_pass, tmp_path, layer(), settings={"fast": fast})


def with_another_loss(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        out = kit.model(x)
        loss = kit.criterion(out, y)
        if step % 5 == 4:
            loss = loss + 0.1 * out.square().mean()
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


class Unused(nn.Linear):
    """Has a weight that it does not use."""

    def __init__(self):
        super().__init__(6, 4)
        self.never = nn.Parameter(torch.ones(3))


def test_a_parameter_without_use_may_be_there(tmp_path):
    beside(with_another_loss, tmp_path, Unused())


def with_another_argument(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        scaled = x * (1.0 if step < 4 else 0.5)  # before the model's call
        loss = kit.criterion(kit.model(scaled), y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


def with_another_call(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        logits = kit.model(x)
        logits *= 2.0  # a write into a value, made again when the step is recorded after all
        if step == 4:
            logits = logits + kit.model(x.flip(0)).flip(0)
        loss = kit.criterion(logits, y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


def with_a_metric_of_the_batch(kit):
    losses, hits = [], 0
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        out, weight = kit.model(x), (y == 1).double().mean()  # lazy until the loss has it
        loss = kit.criterion(out, y) * (1 + weight if step == 4 else 1.0)
        loss.backward()
        kit.optimizer.step()
        hits += (out.argmax(1) == y).sum()
        losses.append(loss.detach())
    return [*losses, hits]


def with_term(term):
    """Return a loop with another term of the loss in step 5."""

    def loop(kit):
        losses = []
        for step, (x, y) in enumerate(kit.train):
            kit.optimizer.zero_grad()
            out = kit.model(x)
            loss = kit.criterion(out, y)
            if step == 4:
                loss = loss + term(out, loss)
            loss.backward()
            kit.optimizer.step()
            losses.append(loss.detach())
        return losses

    return loop


def under_no_grad(out, loss):
    with torch.no_grad():
        mean = out.mean()
    return out.square().mean() * mean


def written_and_detached(out, loss):
    target = out.clone().detach()
    target *= 2
    return (target * out).mean()


@pytest.mark.parametrize(
    "term",
    [
        under_no_grad,
        written_and_detached,
        lambda out, loss: out.square().mean() * out.detach().mean(),
        lambda out, loss: out.square().mean() * out.mean().detach(),
        lambda out, loss: loss / loss.detach(),
    ],
)
def test_what_is_detached_stays_so_in_a_step_recorded_after_all(tmp_path, term):
    beside(with_term(term), tmp_path)


class WithMean(nn.Linear):
    """Returns the mean of its result, too."""

    def forward(self, x):
        out = super().forward(x)
        return out, out.mean()


def with_another_output(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        out, mean = kit.model(x)
        loss = kit.criterion(out, y)
        if step == 4:
            loss = loss + mean.square()
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


def detached_in_a_step(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        out = kit.model(x)
        scale = (out.detach() if step == 4 else out).exp()
        loss = kit.criterion(out * scale, y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


def without_gradients_in_a_step(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        with torch.set_grad_enabled(step != 4):
            mirrored = kit.model(x.flip(0))
        loss = kit.criterion(kit.model(x) + mirrored, y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


def test_gradients_of_an_output_that_step_1_did_not_use(tmp_path):
    beside(with_another_output, tmp_path, WithMean(6, 4))


@pytest.mark.parametrize("loop", [detached_in_a_step, without_gradients_in_a_step])
def test_gradients_may_be_cut_in_some_steps(tmp_path, loop):
    beside(loop, tmp_path)


def written_before_the_loss(kit):
    losses = []
    for x, y in kit.train:
        kit.optimizer.zero_grad()
        shifted = x * 2  # without gradients until the write
        shifted += kit.model(x).mean()
        loss = kit.criterion(shifted, y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


def test_a_value_has_gradients_from_a_write_on(tmp_path):
    beside(written_before_the_loss, tmp_path)
    performance = json.loads((tmp_path / "performance/performance.json").read_text())
    assert not performance["recorded_steps"]  # tokens from step 4 on


def with_a_penalty_of_weights(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x), y)
        if step == 4:
            loss = loss + kit.model[0].weight.square().sum()
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


def test_weights_in_the_loss_of_some_steps(tmp_path):
    beside(with_a_penalty_of_weights, tmp_path / "recorded", settings={"fast": False})
    kit = Kit()
    said = r"test_recorded_parts.py:\d+: the loss takes weights outside of forward, and did not"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path / "fast"):
        with_a_penalty_of_weights(kit)


@pytest.mark.parametrize(
    "loop",
    [with_another_loss, with_another_argument, with_another_call, with_a_metric_of_the_batch],
)
def test_the_loop_may_compute_something_else_in_later_steps(tmp_path, loop):
    beside(loop, tmp_path)


def switches_after_the_batch(kit):
    losses = []
    for step, (x, y) in enumerate(kit.train):
        kit.model[1].p = 0.0 if step < 4 else 0.25
        kit.model[0].requires_grad_(step != 5)
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x) / (1 + kit.model[1].p), y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


class Scale(nn.Module):
    p = 0.0

    def forward(self, x):
        return x * (1 - self.p)


def test_what_forward_reads_may_change_after_the_batch_was_taken(tmp_path):
    layers = nn.Linear(6, 9), Scale(), nn.Linear(9, 4)
    beside(switches_after_the_batch, tmp_path, *layers)


def test_a_recorded_loop_has_the_bits_of_a_fast_one(tmp_path):
    found = []
    for fast in (True, False):
        kit = Kit()
        with kit.session(tmp_path / str(fast), fast=fast):
            losses = [float(x) for x in kit.train_once()]
        found.append((losses, [p.tolist() for p in kit.model.parameters()]))
    assert found[0] == found[1]


def test_a_resumed_loop_goes_on_as_if_it_had_never_ended(tmp_path):
    def run(folder, passes):
        torch.manual_seed(1)
        kit = Kit(LayerDrop())
        random.seed(5)
        with kit.session(folder):
            losses = [float(x) for _ in range(passes) for x in kit.train_once()]
        return losses, [p.tolist() for p in kit.model.parameters()]

    run(tmp_path / "a", 1)
    assert run(tmp_path / "a", 2) == run(tmp_path / "b", 2)


def test_the_cause_and_its_steps_are_told(tmp_path, caplog):
    caplog.set_level("INFO", "csrun")
    kit = Kit(LayerDrop())
    random.seed(5)
    with kit.session(tmp_path):
        kit.train_once()
    (cause,) = [r.message for r in caplog.records if "each step is recorded" in r.message]
    assert "test_recorded_parts.py:" in cause
    assert "forward draws numbers from random: each step is recorded" in cause
    performance = json.loads((tmp_path / "performance/performance.json").read_text())
    (line, count), *others = performance["recorded_steps"].items()
    assert not others
    assert line.endswith("forward draws numbers from random")
    assert count == 5  # of 6: the first one tells
    assert f"Recorded 5 steps after the first ones: {line} (5)" in caplog.text


def test_too_many_graphs_are_refused_with_their_cause(tmp_path, monkeypatch):
    monkeypatch.setattr(variant_cache, "MOST_GRAPHS", 2)

    def scaled(kit):
        for step, (x, y) in enumerate(kit.train):
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y) * (1 + step)
            loss.backward()
            kit.optimizer.step()

    kit = Kit()
    said = r"test_recorded_parts.py:\d+: aten.mul.Tensor has .* the step has had more than 2 graphs"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        scaled(kit)


def test_a_step_that_has_run_is_not_recorded_again(tmp_path):
    kit = Kit()
    said = r"test_recorded_parts.py:\d+: backward\(\) must be called on the loss as step 1 computed"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for step, (x, y) in enumerate(kit.train):
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y)
            if step == 4 and loss.item() > 0:
                loss = loss * 3
            loss.backward()
            kit.optimizer.step()


# The model on tensors of the loop's own.


def estimated(kit):
    torch.manual_seed(2)
    own, labels, found = torch.randn(9, 6).double(), torch.randint(4, (9,)), []
    for step, (x, y) in enumerate(kit.train):
        if step in (0, 2, 5):
            kit.model.eval()
            with torch.no_grad():
                found.append(cross_entropy(kit.model(own), labels))
            kit.model.train()
        kit.optimizer.zero_grad()
        kit.criterion(kit.model(x), y).backward()
        kit.optimizer.step()
    with torch.no_grad():
        return [*found, kit.model(own).sum()]


@pytest.mark.parametrize("fast", [True, False])
def test_the_model_is_called_on_the_loops_own_tensors(tmp_path, fast):
    beside(estimated, tmp_path, settings={"fast": fast})


def test_a_batch_norm_in_training_is_refused_there(tmp_path):
    kit = Kit(nn.Linear(6, 4), nn.BatchNorm1d(4))
    said = r"writes its buffer 1\.\w+: call model.eval\(\) before it"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()
        with torch.no_grad():
            kit.model(torch.randn(5, 6).double())


def test_gradients_of_the_loops_own_tensors_are_refused(tmp_path):
    kit = Kit()
    said = "called on tensors that are not of the Session's batch: for a prediction"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()
        kit.model(torch.randn(5, 6).double())


def with_an_iterator_from_before(kit):
    losses = []
    for x, y in kit.early:
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x), y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


class EarlyKit(Kit):
    """A kit whose pass begins before the Session's block."""

    def __init__(self):
        super().__init__()
        self.early = iter(self.train)

    def session(self, folder, **options):
        opened = super().session(folder, **options)
        self.early = iter(self.train)
        return opened


def test_a_pass_is_of_the_session_in_which_its_first_batch_is_taken(tmp_path):
    beside(with_an_iterator_from_before, tmp_path, kit=EarlyKit)


class Slopes(nn.Linear):
    """Creates a buffer in its first forward, of another one, as ALiBi's biases are."""

    def __init__(self):
        super().__init__(6, 4)
        self.register_buffer("slopes", torch.arange(4, dtype=torch.float64))
        self.register_buffer("bias_of", None, persistent=False)

    def forward(self, x):
        if self.bias_of is None:
            self.register_buffer("bias_of", self.slopes * 2 - 1, persistent=False)
        return super().forward(x) + self.bias_of


def test_a_buffer_that_forward_makes_of_buffers(tmp_path):
    beside(lambda kit: kit.train_once() + kit.train_once(), tmp_path, Slopes())


def contrastive(kit):
    """The loss of SimCLR: similarities of all pairs but each with itself."""
    others = ~torch.eye(8, dtype=torch.bool)
    losses = []
    for x, _ in kit.train:
        z = torch.nn.functional.normalize(kit.model(x), dim=1)
        pairs = (z @ z.T)[others].view(8, 7)
        loss = cross_entropy(pairs / 0.5, torch.arange(8) % 7)
        kit.optimizer.zero_grad()
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


def test_a_mask_of_the_loop_is_an_index(tmp_path):
    beside(contrastive, tmp_path)


class Seen(nn.Linear):
    """Adds up what it has seen, in evaluations too."""

    def __init__(self):
        super().__init__(6, 4)
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        self.seen += x.detach().abs().max()
        return super().forward(x)


def test_a_buffer_that_an_evaluation_adds_to_is_refused(tmp_path):
    kit = Kit(Seen())
    said = r"test_recorded_parts.py:\d+: an evaluation adds to the buffer 0.seen"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()
        kit.model.eval()
        with torch.no_grad():
            [kit.model(x).sum().item() for x, _ in kit.val]


# Weights that the loop writes.


def written(kit):
    losses = kit.train_once()
    best = {name: x.clone() for name, x in kit.model.state_dict().items()}
    losses += kit.train_once()
    kit.model.load_state_dict(best)
    losses += kit.train_once()
    with torch.no_grad():
        for p in kit.model.parameters():
            p.clamp_(-0.3, 0.3)
        torch._foreach_mul_(list(kit.model.parameters()), 0.9)
    return losses + kit.train_once()


def test_the_loop_may_write_weights_between_steps(tmp_path):
    beside(written, tmp_path)


def evaluated(kit):
    kit.model.eval()
    with torch.no_grad():
        return [kit.criterion(kit.model(x), y) for x, y in kit.val]


def halve(kit):
    with torch.no_grad():
        kit.model[0].weight.mul_(0.5)


def written_around_evaluations(kit):
    losses = kit.train_once()
    halve(kit)
    losses += evaluated(kit)
    halve(kit)
    return losses + evaluated(kit)


def test_what_was_evaluated_before_a_write_is_read_after_it(tmp_path):
    beside(written_around_evaluations, tmp_path)


def test_weights_are_written_between_evaluations_in_two_blocks(tmp_path):
    ours, theirs, found = Kit(), Kit(), []
    cbtorch.initialize(model_dir=tmp_path)
    ours.model, ours.val = cbtorch.module(ours.model), cbtorch.dataloader(ours.val)
    for _ in range(2):
        with cbtorch.Session(ours.model, criterion=ours.criterion, mode="eval"):
            found += evaluated(ours)
        halve(ours)
    expected = evaluated(theirs)
    halve(theirs)
    expected += evaluated(theirs)
    assert [float(x) for x in found] == pytest.approx([float(x) for x in expected], 1e-6)


def test_a_count_of_hits_keeps_no_outputs_of_recorded_steps(tmp_path):
    kit, hits, held = Kit(), torch.tensor(0), []
    with kit.session(tmp_path, fast=False):
        for _ in range(3):
            for x, y in kit.train:
                kit.optimizer.zero_grad()
                out = kit.model(x)
                kit.criterion(out, y).backward()
                kit.optimizer.step()
                hits = hits + (out.argmax(1) == y).sum()
            gc.collect()
            held.append(
                sum(type(o) is torch.Tensor and o.shape == (8, 4) for o in gc.get_objects())
            )
    assert held[2] - held[1] < 2  # of six steps


def test_weights_are_not_written_within_a_step(tmp_path):
    kit = Kit()
    said = "is written between the loop's batch and optimizer.step"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for step, (x, y) in enumerate(kit.train):
            kit.criterion(kit.model(x), y).backward()
            if step == 4:
                kit.model[0].weight.data.mul_(0.5)
            kit.optimizer.step()
            kit.optimizer.zero_grad()


def test_weights_written_in_replayed_steps_come_from_the_checkpoint(tmp_path):
    def run(folder, passes):
        kit = Kit()
        with kit.session(folder):
            losses = []
            for _ in range(passes):
                losses += [float(x) for x in kit.train_once()]
                with torch.no_grad():
                    kit.model[0].weight.mul_(0.5)
        return losses, [p.tolist() for p in kit.model.parameters()]

    run(tmp_path / "a", 1)
    losses, weights = run(tmp_path / "a", 2)
    expected, after = run(tmp_path / "b", 2)
    assert losses == expected
    assert weights == after


def test_a_tensor_that_the_loop_has_written_since_is_not_read_again(tmp_path):
    kit, weight = Kit(), torch.ones(4, dtype=torch.float64)
    said = r"backward\(\) must be called on the loss as step 1 computed it"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for step, (x, y) in enumerate(kit.train):
            weight.fill_(1.0)
            kit.optimizer.zero_grad()
            logits = kit.model(x) * weight
            if step == 4:
                weight.fill_(2.0)  # after its use
                logits = logits * 3
            kit.criterion(logits, y).backward()
            kit.optimizer.step()


def test_statistics_that_the_loop_resets(tmp_path):
    def loop(kit):
        losses = kit.train_once()
        kit.model[1].reset_running_stats()
        return losses + kit.train_once()

    beside(loop, tmp_path, nn.Linear(6, 4), nn.BatchNorm1d(4))
