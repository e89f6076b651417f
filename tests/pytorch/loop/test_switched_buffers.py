"""Buffers that forward uses as switches or counters, and weights set by the first batch."""

import copy
import random

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from safetensors.torch import load_file  # noqa: E402
from support.buffer_layers import (  # noqa: E402
    ALL,
    ActNorm,
    Annealed,
    Codebook,
    Counted,
    CumulativeNorm,
    ReadBefore,
    SkippedNorm,
    Usage,
)
from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.records import checkpoints  # noqa: E402
from csrun.records.state_dict import write_file  # noqa: E402
from csrun.records.torch_names import stored_name  # noqa: E402


def two_passes(kit):
    """Losses of two trainings, each with an evaluation, and sums of buffers."""
    random.seed(3)
    found = []
    for _ in range(2):
        kit.model.train()
        found += kit.train_once()
        kit.model.eval()
        with torch.no_grad():
            found += [kit.criterion(kit.model(x), y) for x, y in kit.val]
        found += [buffer.double().sum() for buffer in kit.model.buffers()]
    return found


@pytest.mark.parametrize("layer", ALL)
def test_buffers_of_forward_have_pytorchs_numbers(tmp_path, layer):
    torch.manual_seed(1)
    beside(two_passes, tmp_path, layer())


class Ragged(Kit):
    """Kit with a short last batch, whose steps run on another part of the loop than the first."""

    def __init__(self, *layers):
        super().__init__(*layers)
        data = self.train.dataset.tensors
        self.train = DataLoader(torch.utils.data.TensorDataset(*(x[:20] for x in data)), 8)


@pytest.mark.parametrize("layer", [Codebook, ReadBefore, Counted, SkippedNorm])
@pytest.mark.parametrize("fast", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_step_of_another_shape_counts_once(tmp_path, layer, fast):
    torch.manual_seed(1)
    beside(two_passes, tmp_path, layer(), kit=Ragged, settings={"fast": fast})


class Masked(nn.Module):
    """Network with a mask that no step writes, and a non-persistent buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)
        self.register_buffer("mask", torch.tensor([True, False] * 3))
        self.register_buffer("codes", torch.arange(6).to(torch.uint16))
        self.register_buffer("places", torch.arange(6), persistent=False)

    def forward(self, x):
        return self.last(self.norm(self.first(x)) * self.mask + self.places)


def train_once(kit, note=lambda: None, inverts=True):
    """One pass. note: called after each step. inverts: the loop inverts the mask after one step."""
    losses = []
    for step, (x, y) in enumerate(kit.train):
        losses.append(kit.update(kit.criterion(kit.model(x), y)))
        note()
        if inverts and step == 1 and isinstance(kit.model[0], Masked):
            kit.model[0].mask.logical_not_()
    return losses


@pytest.mark.parametrize(
    "layer", [ActNorm, Codebook, Annealed, CumulativeNorm, SkippedNorm, Counted, Usage, Masked]
)
def test_a_resumed_run_has_the_buffers_of_one_that_was_never_killed(tmp_path, layer):
    def run(folder, passes):
        torch.manual_seed(1)
        kit = Kit(layer())
        random.seed(3)
        with kit.session(folder):
            losses = [float(x) for n in range(passes) for x in train_once(kit, inverts=n == 0)]
        saved = checkpoints.latest(folder)
        return (
            losses,
            [x.tolist() for x in kit.model.state_dict().values()],
            {name: saved.tensor(name).tolist() for name in saved.weights},
        )

    run(tmp_path / "a", 1)
    assert run(tmp_path / "a", 2) == run(tmp_path / "b", 2)


def test_a_count_is_that_of_the_line_amid_a_step_and_in_a_replay(tmp_path):
    def run(passes):
        kit, found = Kit(Counted()), []
        with kit.session(tmp_path):
            for n, (x, y) in enumerate(batch for _ in range(passes) for batch in kit.train):
                loss = kit.criterion(kit.model(x), y)
                if n > 3:
                    found.append((n, int(kit.model[0].steps)))
                kit.update(loss)
                found.append((n, kit.model[0].steps.tolist()))
        return found

    assert all(count == 3 * (n + 1) for passes in (1, 2) for n, count in run(passes))


def counted(kit, last=99):
    """Two passes that read the count after each step, and set it in some steps.

    last: steps until the script is killed.
    """
    found, steps = [], kit.model[0].steps
    for n, (x, y) in enumerate(batch for _ in range(2) for batch in kit.train):
        if n == last:
            raise KeyboardInterrupt
        kit.update(kit.criterion(kit.model(x), y))
        found.append(int(steps))
        if n == 2:
            steps.zero_()
        if n in (4, 5):
            steps.add_(100)
        if n == 7:
            steps.numpy()[...] = 7
        found.append(int(steps))
    return found


@pytest.mark.parametrize("last", [6, 9])
def test_counts_that_the_loop_sets_are_those_of_a_killed_run(tmp_path, last):
    """Set before the checkpoint from which the run resumes, and right after it."""
    kits = torch_kit, first, again = [Kit(Counted()) for _ in range(3)]
    for kit in kits:
        kit.model.load_state_dict(torch_kit.model.state_dict())
    with pytest.raises(KeyboardInterrupt), first.session(tmp_path, save_checkpoints_steps=1):
        counted(first, last)
    with again.session(tmp_path):
        found = counted(again)
    assert found == counted(torch_kit)
    for name, value in again.model.state_dict().items():
        expected = torch_kit.model.state_dict()[name]
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12, msg=name)


def passes(kit, note=lambda: None):
    """Eighteen steps, with an evaluation after each pass. note: called after each step."""
    random.seed(3)
    for _ in range(18 // len(kit.train)):
        kit.model.train()
        train_once(kit, note)
        kit.model.eval()
        with torch.no_grad():
            for x, y in kit.val:
                kit.criterion(kit.model(x), y)


LAYERS = [ActNorm, Codebook, ReadBefore, Usage, CumulativeNorm, SkippedNorm, Counted, Masked]
QUICK_RECORDED = (Codebook, Masked)  # a buffer that forward writes, one that the loop writes


@pytest.mark.parametrize(
    ("layer", "fast", "kit"),
    [
        pytest.param(
            layer,
            fast,
            kit,
            marks=() if kit is Ragged and (fast or layer in QUICK_RECORDED) else pytest.mark.slow,
        )
        for layer in LAYERS
        for fast in (True, False)
        for kit in (Ragged, Kit)
    ],
)
def test_checkpoints_have_the_integer_buffers_of_their_step(tmp_path, layer, fast, kit):
    """The loop is ahead of the wafer, and sets a buffer between two steps."""
    torch.manual_seed(1)
    ours, theirs, expected = kit(layer()), kit(layer()), []
    theirs.model.load_state_dict(ours.model.state_dict())
    note = lambda: expected.append(copy.deepcopy(theirs.model.state_dict()))  # noqa: E731
    passes(theirs, note)
    if layer is SkippedNorm:
        counts = [int(state["0.norm.num_batches_tracked"]) for state in expected]
        assert 0 < counts[-1] < len(counts)
    every = {"save_checkpoints_steps": 1, "keep_checkpoint_max": len(expected)}
    with ours.session(tmp_path, fast=fast, **every):
        passes(ours)
    for step, state in enumerate(expected, 1):
        require_saved(tmp_path, step, state)


def require_saved(folder, step, state):
    """Assert that a step's checkpoint has the tensors of a state_dict."""
    found = checkpoints.open_checkpoint(folder / checkpoints.name_of(step))
    weights = {stored_name(name): value for name, value in state.items()}
    assert set(found.weights) == weights.keys()
    for name, value in weights.items():
        ours = torch.from_numpy(found.tensor(name))
        torch.testing.assert_close(ours, value, rtol=1e-9, atol=1e-12, msg=f"{name} {step}")


def loaded(kit):
    """Load a pretrained model before the first batch."""
    state = {name: x.clone() for name, x in kit.model.state_dict().items()}
    state["0.norm.num_batches_tracked"].fill_(5000)
    kit.model.load_state_dict({**state, "0.mask": ~state["0.mask"]})


def reset(kit):
    """Train, and reset the statistics of the norm between two steps."""
    train_once(kit)
    kit.model[0].norm.reset_running_stats()
    kit.model[0].mask.fill_(True)


@pytest.mark.parametrize("write", [loaded, reset])
@pytest.mark.parametrize("sessions", [1, 2])
def test_buffers_that_the_script_sets_before_a_batch_are_in_checkpoints(tmp_path, write, sessions):
    ours, theirs = Kit(Masked()), Kit(Masked())
    theirs.model.load_state_dict(ours.model.state_dict())
    every = {"save_initial_checkpoint": True, "save_checkpoints_steps": 1}
    opened = ours.session(tmp_path, keep_checkpoint_max=99, **every)
    for _ in range(sessions):
        write(theirs)
        train_once(theirs)
        with opened:
            write(ours)
            train_once(ours)
        ours.model[0].mask.logical_not_()  # between two Sessions
        theirs.model[0].mask.logical_not_()
        opened = cbtorch.Session(ours.model, ours.optimizer, ours.criterion, mode="train")
    state = theirs.model.state_dict()
    for name, value in ours.model.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=1e-9, atol=1e-12, msg=name)
    theirs.model[0].mask.logical_not_()  # after the last checkpoint
    require_saved(tmp_path, checkpoints.latest(tmp_path).step, state)


def test_a_checkpoint_is_a_state_dict_that_pytorch_loads(tmp_path):
    kit = Kit(SkippedNorm())
    random.seed(3)
    with kit.session(tmp_path):
        kit.train_once()
    write_file(tmp_path / "model.safetensors", checkpoints.latest(tmp_path))
    other = Kit(SkippedNorm()).model
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))  # strict
    for name, value in other.state_dict().items():
        torch.testing.assert_close(value, kit.model.state_dict()[name], rtol=0, atol=0)


def test_the_mean_of_all_batches_takes_two_programs(tmp_path, caplog):
    caplog.set_level("INFO", "csrun")
    kit = Kit(CumulativeNorm())
    with kit.session(tmp_path):
        kit.train_once()
    assert sum("Compiled in" in line for line in caplog.messages) == 2


class TakenBack(ActNorm):
    """Layer initialized again by a later batch, as the loop turns its switch off."""


def switched_off(kit):
    found = []
    for step, (x, y) in enumerate(kit.train):
        if step == 3:
            kit.model[0].initialized.zero_()
        found.append(kit.update(kit.criterion(kit.model(x), y)))
    return found


def test_weights_that_forward_sets_again_go_into_the_store(tmp_path):
    torch.manual_seed(1)
    beside(switched_off, tmp_path, TakenBack())


class UsedFirst(ActNorm):
    """Layer that sets a weight from its earlier value."""

    def initialize(self, x):
        with torch.no_grad():
            self.loc.copy_(-(x + self.loc).mean(0, keepdim=True))
            self.scale.mul_(x.std())


def test_a_weight_that_forward_sets_from_its_earlier_value_is_pytorchs(tmp_path):
    torch.manual_seed(1)
    beside(train_once, tmp_path, UsedFirst())
