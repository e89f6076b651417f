"""Training loops drawn from a seed, as users write them around `cbtorch.Session`.

A `Recipe` names what the loop has: a model and what its forward reads, an optimizer, a scheduler,
and what changes around the steps (data set, frozen weights, hooks, optimizer state, settings).
`train` runs a recipe in plain PyTorch or on csrun, so that both are the same lines. Everything is
float64 and deterministic: losses and weights must agree to rounding.
"""

import contextlib
import random
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, TensorDataset

import cerebras_torch as cbtorch

PASSES = 3
SAMPLES, BATCH, WIDTH, CLASSES = 26, 4, 5, 3  # a shorter last batch of two samples
CHANGED_PASS = 1  # the first pass that differs from pass 0

Change = Callable[["Loop", int], None]  # called before each pass with its number


class Settings:
    """A plain object that forward reads, as `args` or `model.config` is."""

    def __init__(self) -> None:
        self.scale = 1.0
        self.table = {"scale": 1.0}
        self.items = [1.0]


SCALE = 1.0  # the global that a forward reads


class Net(nn.Module):
    """A small classifier whose forward takes its scale from one of several places."""

    def __init__(self, recipe: "Recipe", settings: Settings) -> None:
        super().__init__()
        self.hidden = nn.Linear(WIDTH, 6)
        self.norm: nn.Module = nn.BatchNorm1d(6) if recipe.model == "batch norm" else nn.Identity()
        self.out = nn.Linear(6, CLASSES)
        self.reads, self.settings, self.calls = recipe.reads, settings, 0
        self.own = [1.0]

    def scale(self) -> float:
        match self.reads:
            case "object":
                return self.settings.scale
            case "dict":
                return self.settings.table["scale"]
            case "list":
                return self.settings.items[0]
            case "own list":
                return self.own[0]
            case "global":
                return SCALE
            case "counter":
                self.calls += 1
                return 1.0 + self.calls / 100
            case "random":
                return 1.0 if random.random() < 0.5 else 1.25
        return 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.norm(self.hidden(x)))
        return self.out(h) * self.scale()


class Scaled(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A data set with an attribute that a curriculum changes."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y, self.scale = x, y, 1.0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index] * self.scale, self.y[index]


@dataclass
class Loop:
    """What a running recipe changes."""

    model: nn.Module
    plain: Net  # the module itself, of which `model` may be a wrapper
    optimizer: optim.Optimizer
    data: Any
    settings: Settings


def scale_object(loop: Loop, number: int) -> None:
    loop.settings.scale = 0.5**number
    loop.settings.table["scale"] = 0.5**number
    loop.settings.items[0] = 0.5**number
    loop.plain.own[0] = 0.5**number
    globals()["SCALE"] = 0.5**number


def curriculum(loop: Loop, number: int) -> None:
    if isinstance(loop.data, Scaled):
        loop.data.scale = 1.0 + number


def pseudo_labels(loop: Loop, number: int) -> None:
    labels = loop.data.y if isinstance(loop.data, Scaled) else loop.data.tensors[1]
    if number >= CHANGED_PASS:
        labels.copy_((labels + 1) % CLASSES)


def refreshed_inputs(loop: Loop, number: int) -> None:
    if number >= CHANGED_PASS:
        (loop.data.x if isinstance(loop.data, Scaled) else loop.data.tensors[0]).mul_(1.5)


def freeze_first(loop: Loop, number: int) -> None:
    loop.plain.hidden.requires_grad_(number == 0)


def unfreeze_first(loop: Loop, number: int) -> None:
    loop.plain.hidden.requires_grad_(number > 0)


def clear_state(loop: Loop, number: int) -> None:
    if number >= CHANGED_PASS:
        loop.optimizer.state.clear()


def replace_state(loop: Loop, number: int) -> None:
    if number >= CHANGED_PASS:
        loop.optimizer.state = defaultdict(dict)


def zero_state(loop: Loop, number: int) -> None:
    if number >= CHANGED_PASS:
        for state in loop.optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and name != "step":
                    value.zero_()


def hook_forward(loop: Loop, number: int) -> None:
    if number == CHANGED_PASS:
        loop.plain.hidden.register_forward_hook(lambda module, args, out: out * 0.5)


def hook_gradient(loop: Loop, number: int) -> None:
    if number == CHANGED_PASS:
        loop.plain.out.weight.register_hook(lambda gradient: gradient * 0.5)


CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (
        scale_object, curriculum, pseudo_labels, refreshed_inputs, freeze_first, unfreeze_first,
        clear_state, replace_state, zero_state, hook_forward, hook_gradient,
    )
}  # fmt: skip


def halve_rate(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.98


def halve_gradients(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)


def clamp_weights(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.clamp_(-0.3, 0.3)


def replace_step(optimizer: optim.Optimizer) -> None:
    step = optimizer.step

    def slower(*args: Any, **kwargs: Any) -> Any:
        halve_rate(optimizer, args, kwargs)
        return step(*args, **kwargs)

    optimizer.step = slower  # type: ignore[method-assign]


HOOKS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "none": lambda optimizer: None,
    "post hook": lambda optimizer: optimizer.register_step_post_hook(halve_rate),
    "pre hook": lambda optimizer: optimizer.register_step_pre_hook(halve_gradients),
    "clamping hook": lambda optimizer: optimizer.register_step_post_hook(clamp_weights),
    "replaced step": replace_step,
}

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, 0.1),
    "momentum": lambda p: optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.05),
    "Nesterov": lambda p: optim.SGD(p, 0.05, momentum=0.8, nesterov=True),
    # A larger eps: a gradient that is 0 in theory is not divided by its own rounding.
    "Adam": lambda p: optim.Adam(p, 0.01, eps=1e-3, weight_decay=0.01),
    "AdamW": lambda p: optim.AdamW(p, 0.01, eps=1e-3),
    "Adagrad": lambda p: optim.Adagrad(p, 0.05, eps=1e-3, weight_decay=0.01),
    "RMSprop": lambda p: optim.RMSprop(p, 0.01, eps=1e-3, momentum=0.5),
}

SCHEDULERS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "none": lambda optimizer: None,
    "step": lambda optimizer: optim.lr_scheduler.StepLR(optimizer, 5, 0.5),
    "cosine": lambda optimizer: optim.lr_scheduler.CosineAnnealingLR(optimizer, 12),
    "exponential": lambda optimizer: optim.lr_scheduler.ExponentialLR(optimizer, 0.95),
    "plateau": lambda optimizer: optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
}


@dataclass(frozen=True)
class Recipe:
    """The ingredients of one loop; a field is drawn from the values of `CHOICES`."""

    model: str
    reads: str
    optimizer: str
    groups: str
    scheduler: str
    hooks: str
    changes: tuple[str, ...]
    data: str
    order: str
    clearing: str
    edit: str
    reading: str
    evaluation: str
    ending: str
    checkpoints: int

    def __str__(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self))


# The first value is the usual one: a recipe departs from it in some of its fields.
CHOICES: dict[str, tuple[Any, ...]] = {
    "model": ("linear", "batch norm"),
    "reads": ("nothing", "object", "dict", "list", "own list", "global", "counter", "random"),
    "optimizer": tuple(OPTIMIZERS),
    "groups": ("one", "two"),
    "scheduler": tuple(SCHEDULERS),
    "hooks": tuple(HOOKS),
    "changes": tuple(CHANGES),
    "data": ("tensors", "scaled"),
    "order": ("as stored", "shuffled", "drop_last"),
    "clearing": ("none", "zeros", "after"),
    "edit": ("none", "clip", "scale"),
    "reading": ("end", "each", "third", "pass"),
    "evaluation": ("none", "hits", "first"),
    "ending": ("all", "early", "sessions"),
    "checkpoints": (0, 5),
}
DEPARTURE = 0.35  # share of the fields that are drawn


def draw(seed: int) -> Recipe:
    """Return the recipe of a seed."""
    dice = random.Random(seed)
    chosen: dict[str, Any] = {}
    for name, values in CHOICES.items():
        if name == "changes":
            count = dice.choice((0, 0, 1, 1, 1, 2))
            chosen[name] = tuple(sorted(dice.sample(values, count)))
        elif name in ("optimizer", "data"):
            chosen[name] = dice.choice(values)
        else:
            chosen[name] = dice.choice(values) if dice.random() < DEPARTURE else values[0]
    if {"scale_object"} & set(chosen["changes"]) and chosen["reads"] == "nothing":
        chosen["reads"] = dice.choice(CHOICES["reads"][1:6])
    if "curriculum" in chosen["changes"]:
        chosen["data"] = "scaled"
    return Recipe(**chosen)


@dataclass(frozen=True)
class Outcome:
    """What a loop leaves: the numbers that it read, and the model's final state."""

    numbers: list[float]
    state: dict[str, torch.Tensor]
    rates: list[float]


def parameters_of(recipe: Recipe, model: Net) -> Any:
    if recipe.groups == "one":
        return model.parameters()
    head = {"params": list(model.out.parameters()), "lr": 0.02}
    return [{"params": [*model.hidden.parameters(), *model.norm.parameters()]}, head]


def make_data(recipe: Recipe) -> Any:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES, WIDTH, dtype=torch.float64, generator=generator)
    y = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    return Scaled(x, y) if recipe.data == "scaled" else TensorDataset(x, y)


def train(recipe: Recipe, model_dir: Path | None) -> Outcome:
    """Run a recipe: on csrun where it is given a folder, else in plain PyTorch."""
    torch.manual_seed(3)
    random.seed(7)
    globals()["SCALE"] = 1.0
    settings = Settings()
    plain = Net(recipe, settings).double()
    data = make_data(recipe)
    shuffled, dropped = recipe.order == "shuffled", recipe.order == "drop_last"
    loader: Any = DataLoader(data, BATCH, shuffle=shuffled, drop_last=dropped)
    held_out: Any = DataLoader(TensorDataset(*make_data_pair()), BATCH)
    optimizer = OPTIMIZERS[recipe.optimizer](parameters_of(recipe, plain))
    scheduler = SCHEDULERS[recipe.scheduler](optimizer)
    HOOKS[recipe.hooks](optimizer)  # after the scheduler, which wraps the optimizer's own step
    model: nn.Module = plain
    if model_dir is not None:
        options = {"save_checkpoints_steps": recipe.checkpoints} if recipe.checkpoints else {}
        cbtorch.initialize(model_dir=model_dir, **options)
        model = cbtorch.module(plain)
        loader, held_out = cbtorch.dataloader(loader), cbtorch.dataloader(held_out)
    loop = Loop(model, plain, optimizer, data, settings)
    numbers: list[float] = []
    rates: list[float] = []
    open_session = session_opener(model, optimizer, model_dir)
    per_pass = recipe.ending == "sessions"
    with contextlib.nullcontext() if per_pass else open_session():
        for number in range(PASSES):
            with open_session() if per_pass else contextlib.nullcontext():
                for name in recipe.changes:
                    CHANGES[name](loop, number)
                if recipe.evaluation == "first":
                    numbers += evaluate(model, held_out)
                losses = one_pass(recipe, loop, loader, scheduler)
                numbers += losses
                if recipe.evaluation == "hits":
                    numbers += evaluate(model, held_out)
                step_scheduler(scheduler, losses)
            rates += [group["lr"] for group in optimizer.param_groups]
            if recipe.ending == "early" and number == 1 and losses[-1] < 10:
                break
    state = {name: value.detach().clone() for name, value in plain.state_dict().items()}
    return Outcome(numbers, state, rates)


def make_data_pair() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(10, WIDTH, dtype=torch.float64, generator=generator)
    return x, torch.randint(CLASSES, (10,), generator=generator)


def session_opener(
    model: nn.Module, optimizer: optim.Optimizer, model_dir: Path | None
) -> Callable[[], Any]:
    if model_dir is None:
        return contextlib.nullcontext
    return lambda: cbtorch.Session(model, optimizer, mode="train")


def step_scheduler(scheduler: Any, losses: list[float]) -> None:
    if isinstance(scheduler, optim.lr_scheduler.ReduceLROnPlateau):
        scheduler.step(sum(losses))
    elif isinstance(scheduler, optim.lr_scheduler.ExponentialLR):
        scheduler.step()


def one_pass(recipe: Recipe, loop: Loop, loader: Any, scheduler: Any) -> list[float]:
    """One pass of training; return its losses."""
    losses: list[Any] = []
    loop.model.train()
    for step, (x, y) in enumerate(loader):
        if recipe.clearing != "after":
            loop.optimizer.zero_grad(set_to_none=recipe.clearing == "none")
        loss = nn.functional.cross_entropy(loop.model(x), y)
        loss.backward()
        if recipe.edit == "clip":
            nn.utils.clip_grad_norm_(loop.plain.parameters(), 0.5)
        elif recipe.edit == "scale" and loop.plain.out.weight.grad is not None:
            loop.plain.out.weight.grad.mul_(0.5)
        loop.optimizer.step()
        if recipe.clearing == "after":
            loop.optimizer.zero_grad()
        if scheduler is not None and type(scheduler).__name__ in ("StepLR", "CosineAnnealingLR"):
            scheduler.step()
        is_read = recipe.reading == "each" or (recipe.reading == "third" and step % 3 == 2)
        losses.append(loss.item() if is_read else loss.detach())
    return [float(loss) for loss in losses]


def evaluate(model: nn.Module, held_out: Any) -> list[float]:
    """Return the hits and the mean of the outputs over the held-out samples."""
    model.eval()
    hits, total = 0, 0.0
    with torch.no_grad():
        for x, y in held_out:
            out = model(x)
            hits += int((out.argmax(1) == y).sum())
            total += out.mean().item()
    return [float(hits), total]


def is_plain(recipe: Recipe) -> bool:
    """Whether nothing around the steps changes: such a loop must run, and may not be refused."""
    return (
        not recipe.changes and recipe.hooks == "none" and recipe.reads not in ("counter", "random")
    )


def difference(found: Outcome, expected: Outcome) -> str | None:
    """Return what differs between two outcomes beyond rounding, or None."""
    if found.rates != expected.rates:
        return f"learning rates: {found.rates}, PyTorch has {expected.rates}"
    if len(found.numbers) != len(expected.numbers):
        return f"{len(found.numbers)} numbers, PyTorch has {len(expected.numbers)}"
    for place, (ours, theirs) in enumerate(zip(found.numbers, expected.numbers, strict=True)):
        if abs(ours - theirs) > 1e-7 + 1e-6 * abs(theirs):
            return f"number {place}: {ours}, PyTorch has {theirs}"
    for name, value in found.state.items():
        if not torch.allclose(value, expected.state[name], rtol=1e-8, atol=1e-10):
            return f"{name}: {value.tolist()}, PyTorch has {expected.state[name].tolist()}"
    return None


if __name__ == "__main__":  # a job's script: the seed, and where it trains
    outcome = train(draw(int(sys.argv[1])), Path("model_dir"))
    cbtorch.master_print("numbers", *(number.hex() for number in outcome.numbers))
