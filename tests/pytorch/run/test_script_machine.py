"""All parts of a loop share one order of batches, whichever starts first or is compiled again."""

import contextlib
from itertools import pairwise
from math import ceil

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.programs import SYSTEM  # noqa: E402
from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.mode import ExecutionMode  # noqa: E402
from csrun.estimator.target import Target  # noqa: E402
from csrun.runtime.chief.cpu import CpuMachine  # noqa: E402
from csrun.runtime.chief.machine import Feed  # noqa: E402


class StoppedError(Exception):
    """Raised to end the script."""


def kit(samples):
    """Kit with batches of 8, the last one shorter."""
    made = Kit()
    torch.manual_seed(5)
    x, y = torch.randn(samples, 6, dtype=torch.float64), torch.randint(4, (samples,))
    made.train = DataLoader(TensorDataset(x, y), 8)
    return made


def value_in_one_step(kit):
    """Loop with a single step that reads another value, so that the program is compiled again."""
    found = []
    for epoch in range(3):
        for step, (x, y) in enumerate(kit.train):
            kit.optimizer.zero_grad()
            out = kit.model(x)
            loss = kit.criterion(out, y)
            loss.backward()
            if (epoch, step) == (1, 4):
                found.append(out.sum().item())
            kit.optimizer.step()
            found.append(loss.item())
    return found


def value_and_clipping(kit):
    """Steps alternately with and without clipping; one without is compiled again."""
    found = []
    for epoch in range(5):
        for step, (x, y) in enumerate(kit.train):
            kit.optimizer.zero_grad()
            out = kit.model(x)
            loss = kit.criterion(out, y)
            loss.backward()
            if epoch >= 2 and step % 2:
                nn.utils.clip_grad_norm_(kit.model.parameters(), 0.1)
            kit.optimizer.step()
            if (epoch, step) == (3, 2):
                found.append(out.sum().detach())
            found.append(loss.detach())
    return found


def stops(after):
    def loop(kit):
        found = []
        for _ in range(3):
            for x, y in kit.train:
                if len(found) == after:
                    raise StoppedError
                kit.optimizer.zero_grad()
                loss = kit.criterion(kit.model(x), y)
                loss.backward()
                kit.optimizer.step()
                found.append(loss.item())
        return found

    return loop


def same(ours, theirs, loop, folder):
    """Assert equal weights and values read."""
    with ours.session(folder):
        found = [float(number) for number in loop(ours)]
    torch.testing.assert_close(found, [float(n) for n in loop(theirs)], rtol=1e-9, atol=1e-10)
    for name, value in ours.model.state_dict().items():
        torch.testing.assert_close(value, theirs.model.state_dict()[name], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("loop", "samples"), [(value_in_one_step, 45), (value_and_clipping, 48)])
def test_a_part_that_is_compiled_anew_goes_on_where_the_others_are(tmp_path, loop, samples):
    same(kit(samples), kit(samples), loop, tmp_path)


@pytest.mark.parametrize("taken", [5, 11])
def test_a_run_goes_on_with_the_short_last_batch(tmp_path, taken, caplog):
    ours = kit(45)
    with contextlib.suppress(StoppedError), ours.session(tmp_path):
        stops(taken)(ours)
    same(kit(45), kit(45), stops(None), tmp_path)
    assert not any("batch_size was" in line for line in caplog.messages)


def loaded(machine, monkeypatch):
    """Set of programs currently loaded on a machine of this class.

    A program may only share batches of another one while that one or its other users are loaded.
    """
    there, gone, load, unload = set(), set(), machine.load, machine.unload
    source = {}  # of a program's batches: for which program they were made first

    def add(self, executable, feed):
        there.update({self} - gone)
        own = None if isinstance(feed, Feed) else source.setdefault(feed, feed)
        assert own is None or any(source.get(one, one) is own for one in there)
        there.add(program := load(self, executable, feed))
        source[program] = own or program
        return program

    def remove(self, program):
        there.remove(program)
        gone.add(program)
        unload(self, program)

    monkeypatch.setattr(machine, "load", add)
    monkeypatch.setattr(machine, "unload", remove)
    return there


def test_a_recompiled_program_replaces_its_former_one(tmp_path, monkeypatch):
    """Further values are read in turn; whole batches and the short last one have a program each."""
    there, counts = loaded(CpuMachine, monkeypatch), []
    ours = kit(45)
    with ours.session(tmp_path):
        for epoch in range(6):
            for x, y in ours.train:
                ours.optimizer.zero_grad()
                out = ours.model(x)
                loss = ours.criterion(out, y)
                loss.backward()
                if epoch in (1, 2):
                    (out, y, x)[epoch].sum().item()
                ours.optimizer.step()
            loss.item()
            counts.append(len(there))
    assert set(counts) == {2}


def test_forms_of_edits_of_a_session_that_is_over_are_let_go(tmp_path, monkeypatch):
    there, counts = loaded(CpuMachine, monkeypatch), []
    ours = kit(48)
    session = ours.session(tmp_path)
    for _ in range(4):
        with session:
            for step, (x, y) in enumerate(ours.train):
                ours.optimizer.zero_grad()
                ours.criterion(ours.model(x), y).backward()
                if step > 3:
                    nn.utils.clip_grad_norm_(ours.model.parameters(), 0.1)
                ours.optimizer.step()
        counts.append(len(there))
        session = cbtorch.Session(ours.model, ours.optimizer, ours.criterion, mode="train")
    assert counts[1:] == counts[1:2] * 3


def trained_and_evaluated(kit, evaluates):
    """One pass; return the losses of an evaluation after it, if there is one."""
    kit.train_once()
    if not evaluates:
        return []
    kit.model.eval()
    with torch.no_grad():
        losses = [kit.criterion(kit.model(x), y).item() for x, y in kit.val]
    kit.model.train()
    return losses


def test_a_repeated_evaluation_makes_its_batches_again(tmp_path, monkeypatch):
    """It is unloaded by a Session without an evaluation, and its batches have no other user."""
    there, counts, found = loaded(CpuMachine, monkeypatch), [], []
    ours, theirs = kit(48), kit(48)
    session = ours.session(tmp_path)
    evaluates = [False, True, False, False, True, False]
    for each in evaluates:
        with session:
            found += trained_and_evaluated(ours, each)
            counts.append(len(there))
        session = cbtorch.Session(ours.model, ours.optimizer, ours.criterion, mode="train")
    assert found == pytest.approx([x for e in evaluates for x in trained_and_evaluated(theirs, e)])
    assert counts[3] == counts[1] - 1 == counts[4] - 1


def clipped_in_turn(kit):
    """Loop that clips in every second step, which needs all gradients before the first update."""
    found = []
    for step, (x, y) in enumerate(kit.train):
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x), y)
        loss.backward()
        if step % 2:
            nn.utils.clip_grad_norm_(kit.model.parameters(), 0.1)
        kit.optimizer.step()
        found.append(loss.item())
    return found


def test_a_step_that_needs_more_gradients_at_once_gets_another_store(tmp_path, monkeypatch):
    """Another store, with the first one's state, whose window has all aligned gradients."""
    stores, make = [], CpuMachine.__init__

    def noted(self, executable, *args):
        stores.append(executable.plan.store)
        make(self, executable, *args)

    monkeypatch.setattr(CpuMachine, "__init__", noted)
    target = Target(None, None, SYSTEM, ExecutionMode.WEIGHT_STREAMING)
    monkeypatch.setattr("csrun.pytorch.run.run_programs.target_of", lambda *_: target)
    layers = [nn.Linear(*pair) for pair in pairwise((6, 9, 9, 9, 9, 4))]
    beside(clipped_in_turn, tmp_path, *layers, settings={"max_group_bytes": 64})
    first, grown = stores
    whole = sum(64 * ceil(8 * p.numel() / 64) for layer in layers for p in layer.parameters())
    assert first.gradients_bytes < whole / 2
    assert grown.gradients_bytes == whole
    assert grown.nbytes - first.nbytes == whole - first.gradients_bytes
