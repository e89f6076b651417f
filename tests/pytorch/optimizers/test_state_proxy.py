"""Optimizer state in a Session's block: PyTorch's on reads, refused on writes."""

import copy
from collections import defaultdict
from contextlib import suppress

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402


def momenta(state):
    return [float(s["momentum_buffer"].sum()) for s in state.values()]


def test_the_loop_reads_what_the_steps_so_far_have_made(tmp_path):
    def loop(kit):
        found = []
        for _ in range(3):
            found += kit.train_once()
            found += momenta(kit.optimizer.state)
            first = next(iter(kit.model.parameters()))
            found.append(kit.optimizer.state[first]["momentum_buffer"].abs().max().item())
            found += momenta(copy.deepcopy(kit.optimizer.state))
        return found

    beside(loop, tmp_path)


def test_a_state_dict_is_loaded_before_the_first_step(tmp_path):
    """As in Accelerate's `prepare`, which moves the state to its device."""

    def loop(kit):
        state = kit.optimizer.state_dict()
        state["param_groups"][0]["lr"] = 0.02
        kit.optimizer.load_state_dict(state)
        kit.optimizer.param_groups[0]["momentum"] = 0.5
        losses = kit.train_once()
        kit.optimizer.param_groups[0]["lr"] = 0.04
        return losses + kit.train_once() + momenta(kit.optimizer.state)

    beside(loop, tmp_path)


def test_a_loaded_state_is_the_optimizers_after_the_block(tmp_path):
    kit, plain = Kit(), Kit()
    with kit.session(tmp_path):
        kit.optimizer.load_state_dict(kit.optimizer.state_dict())
        kit.train_once()
    plain.train_once()
    assert momenta(kit.optimizer.state) == pytest.approx(momenta(plain.optimizer.state))


OTHERS = {
    "SGD": {"lr": 0.05, "momentum": 0.9, "dampening": 0.3},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adagrad": {"lr_decay": 0.1},
    "RMSprop": {"centered": True, "momentum": 0.5},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "Adadelta": {},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_state_dict_with_an_earlier_trainings_state_is_taken(tmp_path, kind):
    def make(parameters):
        return getattr(torch.optim, kind)(parameters, **{"lr": 0.01, **OTHERS[kind]})

    trained = Kit(optimizer=make)
    trained.train_once()

    def loop(kit):
        kit.optimizer.load_state_dict(copy.deepcopy(trained.optimizer.state_dict()))
        return kit.train_once()

    beside(loop, tmp_path, optimizer=make, rel=1e-7)


class KilledError(Exception):
    """Raised to end the script."""


STARTS = {
    "adamw": lambda p: torch.optim.AdamW(p, 0.02),
    "dampened": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, dampening=0.3),
}


@pytest.mark.parametrize(
    ("name", "in_block"), [("adamw", True), ("adamw", False), ("dampened", False)]
)
def test_a_killed_run_that_has_loaded_state_resumes(tmp_path, name, in_block):
    """Killed in step 5; the checkpoint is of step 4."""
    trained = Kit(optimizer=STARTS[name])
    trained.train_once()
    weights, state = trained.model.state_dict(), copy.deepcopy(trained.optimizer.state_dict())

    def kill(step):
        if step == 4:
            raise KilledError

    def load(kit):
        kit.model.load_state_dict(weights)
        kit.optimizer.load_state_dict(copy.deepcopy(state))

    def run(edit, **options):
        kit = Kit(optimizer=STARTS[name])
        if not in_block:
            load(kit)
        with suppress(KilledError), kit.session(tmp_path, **options):
            if in_block:
                load(kit)
            losses = [*kit.train_once(edit), *kit.train_once()]
            return kit, losses

    assert run(kill, save_checkpoints_steps=2) is None
    plain = Kit(optimizer=STARTS[name])
    load(plain)
    expected = [*plain.train_once(), *plain.train_once()]
    kit, found = run(lambda step: None)
    torch.testing.assert_close(torch.stack(found).double(), torch.stack(expected).double())
    for ours, theirs in (
        (kit.model.state_dict(), plain.model.state_dict()),
        (kit.optimizer.state_dict()["state"], plain.optimizer.state_dict()["state"]),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        (0, 6, r"begins with optimizer state of 6 steps, and the run in .* began with no state"),
        (6, 0, r"begins with no state, and the run in .* began with optimizer state of 6 steps"),
    ],
)
def test_a_run_that_resumes_with_other_state_is_refused(tmp_path, first, then, said):
    """As by a script that loads its own newest checkpoint."""
    trained = Kit(optimizer=STARTS["adamw"])
    trained.train_once()

    def run(steps):
        kit = Kit(optimizer=STARTS["adamw"])
        if steps:
            kit.optimizer.load_state_dict(copy.deepcopy(trained.optimizer.state_dict()))
        with kit.session(tmp_path):
            kit.train_once()

    run(first)
    with pytest.raises(UsageError, match=said):
        run(then)


def test_loaded_state_waits_for_the_first_training_step(tmp_path):
    """An evaluation comes first; the state of a frozen layer stays as loaded."""
    trained = Kit(optimizer=STARTS["adamw"])
    trained.train_once()

    def loop(kit):
        kit.optimizer.load_state_dict(copy.deepcopy(trained.optimizer.state_dict()))
        kit.model[0].requires_grad_(False)
        kit.model.eval()
        with torch.no_grad():
            losses = [float(kit.criterion(kit.model(x), y)) for x, y in kit.val]
        kit.model.train()
        losses += kit.train_once()
        state = kit.optimizer.state_dict()["state"]
        return [*losses, *(x.double().sum() for one in state.values() for x in one.values())]

    beside(loop, tmp_path, optimizer=STARTS["adamw"])


@pytest.mark.parametrize("way", ["after an evaluation", "between blocks", "before a schedule"])
def test_state_that_is_loaded_late_or_early_is_taken(tmp_path, way):
    trained = Kit(optimizer=STARTS["adamw"])
    trained.train_once()

    def evaluate(kit):
        kit.model.eval()
        with torch.no_grad():
            return [float(kit.criterion(kit.model(x), y)) for x, y in kit.val]

    def load(kit):
        kit.optimizer.load_state_dict(copy.deepcopy(trained.optimizer.state_dict()))

    def train(kit):
        kit.model.train()
        if way != "before a schedule":
            return kit.train_once()
        schedule = torch.optim.lr_scheduler.OneCycleLR(kit.optimizer, 0.01, total_steps=8)
        losses = kit.train_once()
        schedule.step()
        return losses

    def plain(kit):
        load(kit)
        return [*evaluate(kit), *train(kit)]

    kit, expected = Kit(optimizer=STARTS["adamw"]), plain(Kit(optimizer=STARTS["adamw"]))
    if way != "between blocks":
        load(kit)
    session = kit.session(tmp_path)
    if way == "after an evaluation":
        with cbtorch.Session(kit.model, mode="eval"):
            found = evaluate(kit)
    else:
        with session:
            found = evaluate(kit)
    if way == "between blocks":
        load(kit)
    with cbtorch.Session(kit.model, kit.optimizer, kit.criterion, mode="train"):
        found += train(kit)
    torch.testing.assert_close(list(map(float, found)), list(map(float, expected)))


def test_the_next_block_takes_its_own_state_back_and_no_other(tmp_path):
    kit, plain = Kit(), Kit()
    with kit.session(tmp_path):
        found = kit.train_once()
    with cbtorch.Session(kit.model, kit.optimizer, kit.criterion, mode="train"):
        kit.optimizer.load_state_dict(kit.optimizer.state_dict())
        found += kit.train_once()
    expected = plain.train_once() + plain.train_once()
    torch.testing.assert_close(list(map(float, found)), list(map(float, expected)))
    with (
        pytest.raises(UsageError, match=r"the optimizer's state was changed"),
        cbtorch.Session(kit.model, kit.optimizer, kit.criterion, mode="train"),
    ):
        kit.optimizer.load_state_dict(Kit().optimizer.state_dict())


def test_a_script_that_is_run_again_loads_its_state_as_before(tmp_path):
    def run():
        kit = Kit()
        with kit.session(tmp_path):
            first = kit.model.state_dict()["0.weight"].sum()
            kit.optimizer.load_state_dict(kit.optimizer.state_dict())
            return [float(x) for x in (first, *kit.train_once(), *kit.train_once())]

    assert run() == run()


def clear(optimizer):
    optimizer.state.clear()


def replace(optimizer):
    optimizer.state = defaultdict(dict)


def remove(optimizer):
    del optimizer.state[optimizer.param_groups[0]["params"][0]]


def zero(optimizer):
    for state in optimizer.state.values():
        state["momentum_buffer"].zero_()


def put(optimizer):
    for state in optimizer.state.values():
        state["momentum_buffer"] = torch.zeros_like(state["momentum_buffer"])


@pytest.mark.parametrize("write", [clear, replace, remove, zero, put])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_write_in_the_block_is_refused_with_the_line(write, is_last, tmp_path):
    kit = Kit()
    with (
        pytest.raises(UsageError, match=r"\.py:\d+: the optimizer's state is written"),
        kit.session(tmp_path),
    ):
        kit.train_once()
        write(kit.optimizer)
        if not is_last:
            kit.train_once()


def test_the_optimizer_has_its_own_state_after_the_block(tmp_path):
    kit = Kit()
    own = kit.optimizer.state
    with kit.session(tmp_path):
        kit.train_once()
    assert kit.optimizer.state is own
    assert len(momenta(own)) == 4
