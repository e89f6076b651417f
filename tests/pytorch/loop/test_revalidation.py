"""Revalidation: after each checkpoint a step is compared with step 1, to detect changed graphs."""

import itertools
import random

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402
from csrun.pytorch.loop.revalidation import SETS_EVERY  # noqa: E402

EVERY = 6  # steps between checkpoints: a pass
UNSEEN = "switch"


class Changing(nn.Module):
    """Network whose forward changes when its switch is on; calls are counted."""

    def __init__(self, way=lambda self, x: x):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 4)
        self.way, self.switch, self.calls = way, {}, itertools.count()

    def forward(self, x):
        next(self.calls)
        x = self.norm(self.inner(x)).tanh()
        switch = getattr(self, UNSEEN)  # guards go by names in the code
        return self.outer(self.way(self, x) if switch.get("on") else x)


def scales(self, x):
    return x * 2  # here


def stops_the_gradient(self, x):
    return x.detach()


def evaluates_otherwise(self, x):
    return x if self.training else x + 1


def returns_a_pair(self, x):
    self.outer.forward = lambda x: (x, x)
    return x


WAYS = {
    scales: r"revalidation.py:{scales}: aten.mul.Tensor runs where step 1 .* in step 7, ",
    stops_the_gradient: r"revalidation.py:\d+: aten.* in step 7, the first one after a checkpoint",
    evaluates_otherwise: r"revalidation.py:\d+: aten.add.* in step 13, ",
    returns_a_pair: r"revalidation.py:\d+: the model returns other types .*step 7, ",
}
MARKED = scales.__code__.co_firstlineno + 1


def both(kit, before=lambda step: None, passes=3):
    """Losses of alternating training and validation."""
    found, step = [], 0
    for _ in range(passes):
        kit.model.train()
        for x, y in kit.train:
            step += 1
            before(step)
            kit.optimizer.zero_grad()
            loss = kit.criterion(kit.model(x), y)
            loss.backward()
            kit.optimizer.step()
            found.append(loss.detach())
        kit.model.eval()
        with torch.no_grad():
            found += [kit.criterion(kit.model(x), y).item() for x, y in kit.val]
    return found


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_forward_that_changes_silently_is_refused_behind_the_next_checkpoint(tmp_path, way):
    kit = Kit(Changing(way))
    model = kit.model[0]

    def before(step):
        model.switch["on"] = step >= (5 if way is not evaluates_otherwise else 8)
        if way is not evaluates_otherwise and step == EVERY:
            kit.val = []

    said = WAYS[way].format(scales=MARKED)
    with (
        pytest.raises(UsageError, match=said),
        kit.session(tmp_path, save_checkpoints_steps=EVERY),
    ):
        both(kit, before)


def test_a_forward_that_changes_behind_the_last_checkpoint_is_refused_at_the_blocks_end(tmp_path):
    kit = Kit(Changing(scales))

    def before(step):
        kit.model[0].switch["on"] = step >= 16

    said = rf"revalidation.py:{MARKED}: aten.mul.Tensor .* in step 18, the last one of the block"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        both(kit, before)


def test_what_stays_the_same_is_pytorchs_and_forward_runs_once_a_checkpoint(tmp_path):
    kits = []

    def loop(kit):
        kits.append(kit)
        return both(kit)

    beside(loop, tmp_path, Changing(), settings={"save_checkpoints_steps": EVERY})
    ours, theirs = (next(kit.model[0].calls) for kit in kits)
    assert theirs == 3 * (6 + 5)
    # the first ones, behind two checkpoints, and at the block's end; of both loops but the last
    assert ours == 3 + 2 + 1 + 3 + 2


def test_calls_of_the_loop_and_edits_of_gradients_are_made_as_they_were(tmp_path):
    """Detached values, slices of weights, in-place writes, and a bound changed at a checkpoint."""

    def trained(kit):
        losses = []
        for number in range(2):
            for step, (x, y) in enumerate(kit.train, number * EVERY):
                kit.optimizer.zero_grad()
                out = kit.model(x)
                with torch.no_grad():
                    goal = kit.model(x).softmax(1)
                loss = kit.criterion(out, y) + out.detach().mul(out).mean()
                loss = loss + (out.softmax(1) - goal + 0.1).clamp_(min=0.05).sum()
                loss = loss + 1e-2 * sum(p.norm() for p in kit.model.parameters())
                loss.backward()
                if step >= EVERY:
                    nn.utils.clip_grad_norm_(kit.model.parameters(), 0.1)
                kit.optimizer.step()
                losses.append(loss.detach())
        return losses

    beside(trained, tmp_path, settings={"save_checkpoints_steps": 3})


def test_the_loops_random_numbers_do_not_know_of_checkpoints(tmp_path):
    def drawn(folder, every):
        random.seed(5)
        kit, found = Kit(Changing()), []
        with kit.session(tmp_path / folder, save_checkpoints_steps=every):
            both(kit, lambda step: found.append(random.random()))
        return found

    assert drawn("often", 2) == drawn("never", 1000)


class Scaling(nn.Module):
    """Network scaled by an attribute; calls are counted."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale, self.epoch = nn.Linear(6, 4), 2.0, 0
        self.calls = itertools.count()

    def forward(self, x):
        next(self.calls)
        return self.inner(x) * self.scale


def test_what_the_loop_sets_in_the_model_is_seen_in_the_next_step(tmp_path):
    kits = []

    def loop(kit):
        kits.append(kit)

        def before(step):
            kit.model[0].scale = 2.0 if step < 9 else 1.0

        return both(kit, before)

    beside(loop, tmp_path, Scaling())
    ours, theirs = (next(kit.model[0].calls) for kit in kits)
    assert ours < theirs  # the first steps of both loops, with each scale


def test_what_the_loop_sets_in_each_step_is_compared_now_and_then(tmp_path):
    kits = []

    def loop(kit):
        kits.append(kit)

        def before(step):
            kit.model[0].epoch = step

        kit.val = []
        return both(kit, before, passes=5)

    beside(loop, tmp_path, Scaling())
    ours, theirs = (next(kit.model[0].calls) for kit in kits)
    assert theirs == 5 * 6
    assert ours == 3 + 1 + (30 - 4) // SETS_EVERY + 1  # at the block's end


def add_node_hook(kit, hook):
    """Add a hook to a node, which must be referenced for PyTorch to keep it."""
    kit.node = torch.autograd.graph.get_gradient_edge(kit.model[0].weight).node
    return kit.node.register_prehook(hook)


def halve(parameter):
    parameter.grad.mul_(0.5)


HOOKS = {
    "hook": lambda kit: kit.model[0].weight.register_hook(lambda gradient: gradient * 0.5),
    "scaling": lambda kit: kit.model[0].weight.register_hook(
        lambda gradient: gradient * (1 if next(kit.calls) < 4 else 2)
    ),
    "accumulated": lambda kit: kit.model[0].weight.register_post_accumulate_grad_hook(halve),
    "logging": lambda kit: kit.model[0].weight.register_post_accumulate_grad_hook(
        lambda parameter: print(next(kit.calls))
    ),
    "node": lambda kit: add_node_hook(kit, lambda gradients: (gradients[0] * 0.5,)),
    "logging_node": lambda kit: add_node_hook(kit, lambda gradients: print(next(kit.calls))),
}


@pytest.mark.parametrize(
    ("register", "at", "fast"),
    [
        *((register, {5}, True) for register in ("hook", "accumulated", "node")),
        *((register, {0}, True) for register in ("scaling", "logging", "logging_node")),
        ("hook", {1, 4}, True),
        ("hook", {1, 4}, False),
        ("logging", {1}, True),
        ("node", {3, 4}, True),
        ("node", {5}, False),
    ],
)
def test_a_hook_of_a_gradient_is_called_from_its_step_on(tmp_path, register, at, fast):
    """Added between forward and backward, also in a block's last step, and removed there."""

    def loop(kit):
        kit.calls = itertools.count()
        losses, handles = [], []
        for step, (x, y) in enumerate(kit.train):
            loss = kit.criterion(kit.model(x), y)
            if handles and step in at:
                handles.pop().remove()
            elif step in at:
                handles.append(HOOKS[register](kit))
            kit.optimizer.zero_grad()
            loss.backward()
            losses.append(loss.detach())
            kit.optimizer.step()
        for handle in handles:
            handle.remove()
        return [*losses, next(kit.calls)]

    beside(loop, tmp_path, settings={"fast": fast})


def test_a_hook_in_a_step_that_has_run_is_refused(tmp_path):
    kit = Kit()
    said = r"hooks of gradients have changed, and the step has run"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for step, (x, y) in enumerate(kit.train):
            loss = kit.criterion(kit.model(x), y)
            if step == 4:
                loss.item()
                kit.model[0].weight.register_hook(lambda gradient: gradient * 0.5)
            kit.update(loss)


def test_a_frozen_layers_gradient_of_zeros_is_that_of_step_1(tmp_path):
    """Trained before, it has a gradient of zeros after zero_grad(set_to_none=False)."""

    def loop(kit):
        losses = kit.train_once()
        kit.model[0].requires_grad_(False)
        for _ in range(2):
            for x, y in kit.train:
                kit.optimizer.zero_grad(set_to_none=False)
                loss = kit.criterion(kit.model(x), y)
                loss.backward()
                kit.optimizer.step()
                losses.append(loss.detach())
        return losses

    beside(loop, tmp_path, settings={"save_checkpoints_steps": 5})


def test_layers_that_the_loop_calls_by_themselves_are_compared_as_such(tmp_path):
    def loop(kit):
        losses, (first, *rest) = [], kit.model
        for _ in range(2):
            for x, y in kit.train:
                kit.model.number = len(losses)  # not read, so that some steps are compared
                values = first(x)
                for layer in rest:
                    values = layer(values)
                losses.append(kit.update(kit.criterion(values, y)))
        return losses

    beside(loop, tmp_path, settings={"save_checkpoints_steps": 5})


@pytest.mark.parametrize("register", HOOKS)
@pytest.mark.parametrize("fast", [True, False])
def test_a_hook_from_before_the_session_is_called_in_each_step(tmp_path, register, fast):
    class Hooked(Kit):
        def session(self, folder, **options):
            found = super().session(folder, **options)
            self.register()
            return found

        def register(self):
            self.calls = itertools.count()
            self.handle = HOOKS[register](self)

    def loop(kit):
        if not hasattr(kit, "handle"):  # plain PyTorch's
            kit.register()
        return [*kit.train_once(), next(kit.calls)]

    beside(loop, tmp_path, kit=Hooked, settings={"fast": fast})
