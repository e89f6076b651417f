"""Parameters trained in some steps only, and param_groups added in the block: as in PyTorch."""

from contextlib import suppress

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn, optim  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402

OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, 0.05, momentum=0.9),
    "dampened": lambda p: optim.SGD(p, 0.05, momentum=0.9, dampening=0.3),
    "adam": lambda p: optim.Adam(p, 0.02, amsgrad=True),
    "adamw": lambda p: optim.AdamW(p, 0.02, weight_decay=0.1),
    "nadam": lambda p: optim.NAdam(p, 0.02),
    "radam": lambda p: optim.RAdam(p, 0.02),
    "adamax": lambda p: optim.Adamax(p, 0.02),
    "adagrad": lambda p: optim.Adagrad(p, 0.05, lr_decay=0.1, initial_accumulator_value=0.1),
}


def partly_with_momentum(params):
    """SGD with momentum for the layers that are frozen first."""
    *first, weight, bias = params
    groups = {"params": [weight, bias]}, {"params": first, "momentum": 0.9}
    return optim.SGD(groups, 0.05)


OPTIMIZERS["sgd of groups"] = partly_with_momentum
LAYERS = (nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 4))


def slow(*values):
    """Return a slow case of a table."""
    return pytest.param(*values, marks=pytest.mark.slow)


class Lists(Kit):
    """Kit whose Session has lists, so that updates are recorded."""

    def session(self, folder, **options):
        super().session(folder, **options)
        return cbtorch.Session([self.model], [self.optimizer], self.criterion, mode="train")


def phases(kit):
    """Train the last layer, then the first two in turn, and all from the middle of a pass on."""
    losses, step = [], 0
    kit.model[:4].requires_grad_(False)
    for epoch in range(5):
        kit.model[0].requires_grad_(epoch in (1, 4))
        kit.model[2].requires_grad_(epoch >= 2)
        for x, y in kit.train:
            if step == 21:
                kit.model.requires_grad_(True)
            losses.append(kit.update(kit.criterion(kit.model(x), y)))
            step += 1
    return [*losses, *counts(kit.optimizer)]


def counts(optimizer):
    """Sums of the optimizer's state, including each parameter's step count."""
    each = optimizer.state_dict()["state"]
    return [x.double().sum() for n in sorted(each) for _, x in sorted(each[n].items())]


@pytest.mark.parametrize("name", ["adamw", *(slow(x) for x in OPTIMIZERS if x != "adamw")])
def test_a_parameter_counts_the_steps_with_its_gradient(tmp_path, name):
    rel = 1e-6 if name == "nadam" else 1e-10  # PyTorch's product of momenta is float32
    beside(phases, tmp_path, *LAYERS, optimizer=OPTIMIZERS[name], rel=rel)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kit"), [("adamw", Kit), ("sgd", Lists), ("adamw", Lists)])
def test_recorded_steps_count_them_too(tmp_path, name, kit):
    beside(phases, tmp_path, *LAYERS, optimizer=OPTIMIZERS[name], kit=kit, settings={"fast": False})


def head(make):
    """Return an optimizer of the last layer."""
    return lambda params: make(list(params)[-2:])


def unfreezing(amid):
    """Return a loop that adds the other layers to the optimizer, one after the other.

    amid: before the model's call, instead of before the batch.
    """

    def loop(kit):
        scheduler = optim.lr_scheduler.StepLR(kit.optimizer, 7, 0.5)
        kit.model[:4].requires_grad_(False)
        losses = []

        def unfreeze():
            layer = {5: 2, 14: 0}.get(len(losses))
            if layer is not None:
                added = kit.model[layer].requires_grad_(True)
                kit.optimizer.add_param_group({"params": added.parameters(), "lr": 0.01})
                scheduler.base_lrs.append(0.01)

        for _ in range(4):
            for x, y in kit.train:
                if amid:
                    unfreeze()
                kit.optimizer.zero_grad()
                loss = kit.criterion(kit.model(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(kit.model.parameters(), 1.0)
                kit.optimizer.step()
                scheduler.step()
                losses.append(loss.detach())
                if not amid:
                    unfreeze()
        return [*losses, *counts(kit.optimizer)]

    return loop


@pytest.mark.parametrize(
    ("name", "kit", "amid"),
    [
        ("adamw", Kit, True),
        slow("sgd", Kit, True),
        slow("adam", Kit, False),
        slow("radam", Lists, True),
    ],
)
def test_groups_added_in_the_block_are_trained_from_then_on(tmp_path, name, kit, amid):
    beside(unfreezing(amid), tmp_path, *LAYERS, optimizer=head(OPTIMIZERS[name]), kit=kit)


def accumulated(kit):
    """Two batches a step; between two steps a group is added, and other layers are frozen."""
    losses, rest = [], list(kit.model[:4].parameters())
    for epoch in range(4):
        if epoch == 2:
            kit.model[4].weight.requires_grad_(False)
            kit.optimizer.add_param_group({"params": rest, "weight_decay": 0.0})
        kit.optimizer.zero_grad()
        for step, (x, y) in enumerate(kit.train):
            loss = kit.criterion(kit.model(x), y) / 2
            loss.backward()
            if step % 2:
                kit.optimizer.step()
                kit.optimizer.zero_grad()
            losses.append(loss.detach())
    return losses


def test_a_group_may_have_another_momentum_and_steps_several_batches(tmp_path):
    beside(accumulated, tmp_path / "a", *LAYERS, optimizer=head(OPTIMIZERS["adamw"]))

    def momentum(kit):
        losses = kit.train_once()
        kit.optimizer.add_param_group({"params": kit.model[0].parameters(), "momentum": 0.9})
        return [*losses, *kit.train_once(), *kit.train_once()]

    beside(momentum, tmp_path / "b", *LAYERS, optimizer=head(lambda p: optim.SGD(p, 0.05)))


class KilledError(Exception):
    """Raised to end the script."""


@pytest.mark.parametrize(
    ("kit", "killed"), [(Kit, 12), slow(Kit, 4), slow(Kit, 15), slow(Lists, 15)]
)
def test_a_killed_loop_resumes_in_each_phase(tmp_path, kit, killed):
    def run(folder, last, **options):
        ours = kit(*LAYERS, optimizer=head(OPTIMIZERS["adamw"]))
        with suppress(KilledError), ours.session(folder, **options):
            criterion, made = ours.criterion, []

            def until(*given):
                made.append(1)
                if len(made) > last:
                    raise KilledError
                return criterion(*given)

            ours.criterion = until
            return [float(x) for x in unfreezing(amid=True)(ours)]

    assert run(tmp_path / "a", killed, save_checkpoints_steps=3) is None
    assert run(tmp_path / "a", 99) == run(tmp_path / "b", 99)


def test_a_loaded_state_with_other_counts_goes_on(tmp_path):
    first = Kit(*LAYERS, optimizer=OPTIMIZERS["adam"])
    phases(first)
    weights, state = first.model.state_dict(), first.optimizer.state_dict()

    def loop(kit):
        kit.model.load_state_dict(weights)
        kit.optimizer.load_state_dict(state)
        return [*kit.train_once(), *counts(kit.optimizer)]

    beside(loop, tmp_path, *LAYERS, optimizer=OPTIMIZERS["adam"])


def test_a_removed_gradient_splits_a_shared_step_count(tmp_path):
    """Weight and bias of the first layer share a count that is lower than the run's."""

    def loop(kit):
        kit.model[0].requires_grad_(False)
        losses = kit.train_once()
        kit.model[0].requires_grad_(True)

        def remove(step):
            if step == 4:
                kit.model[0].bias.grad = None

        for edit in (lambda step: None, remove, lambda step: None):
            losses += kit.train_once(edit)
        return [*losses, *counts(kit.optimizer)]

    beside(loop, tmp_path, optimizer=OPTIMIZERS["adamw"])


def test_gradients_from_before_the_group_are_refused(tmp_path):
    kit = Kit(*LAYERS, optimizer=head(OPTIMIZERS["adamw"]))

    def add(step):
        if step == 4:
            kit.optimizer.add_param_group({"params": kit.model[0].parameters()})

    said = r"py:\d+: 0.bias had gradients before add_param_group"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once(add)


def test_a_parameter_put_into_a_group_itself_is_refused(tmp_path):
    kit = Kit(*LAYERS, optimizer=head(OPTIMIZERS["adamw"]))
    said = r"py:\d+: the optimizer's param_groups had \[2\] parameters .* \[3\]: add parameters by"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()
        kit.optimizer.param_groups[0]["params"].append(kit.model[0].weight)
        kit.train_once()


def swap(groups):
    groups[0]["params"], groups[1]["params"] = groups[1]["params"], groups[0]["params"]


def swap_in_place(groups):
    first, second = (group["params"] for group in groups)
    first[:], second[:] = second[:], first[:]


@pytest.mark.parametrize("change", [swap, swap_in_place])
def test_parameters_moved_between_groups_are_refused(tmp_path, change):
    def in_two_groups(params):
        *first, weight, bias = params
        return optim.SGD([{"params": first}, {"params": [weight, bias], "lr": 0.2}], 0.05)

    kit = Kit(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4), optimizer=in_two_groups)
    said = r"py:\d+: the optimizer's param_groups had \[2, 2\] parameters .* have other ones: add"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        kit.train_once()
        change(kit.optimizer.param_groups)
        kit.train_once()


class Branches(nn.Module):
    """Network that skips a layer in every second call."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.calls = nn.Linear(6, 9), nn.Linear(9, 9), 0

    def forward(self, x):
        self.calls += 1
        x = self.first(x).tanh()
        return self.middle(x).tanh() if self.calls % 2 else x


@pytest.mark.slow
def test_a_branch_has_a_program_for_its_first_step_and_one_for_others(tmp_path):
    def two_passes(kit):
        return [float(loss) for _ in range(2) for loss in kit.train_once()]

    beside(two_passes, tmp_path, Branches(), optimizer=OPTIMIZERS["adamw"], kit=Lists)
    assert len(list(tmp_path.glob("tfcs_*"))) == 2 * 2
