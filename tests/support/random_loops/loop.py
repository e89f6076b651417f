"""A drawn loop, run in plain PyTorch or on csrun, and its results."""

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from support.random_loops.ingredients import CHANGES, HOOKS, OPTIMIZERS, SCHEDULERS
from support.random_loops.models import (
    BATCH,
    Loop,
    Net,
    Settings,
    held_out_data,
    make_data,
    set_scale,
)
from support.random_loops.recipes import Recipe
from torch import nn, optim
from torch.utils.data import DataLoader

import cerebras_torch as cbtorch

PASSES = 3


@dataclass(frozen=True)
class Outcome:
    """Results of a loop: numbers that it reads, and the model's final state."""

    numbers: list[float]
    state: dict[str, torch.Tensor]
    rates: list[float]


def parameters_of(recipe: Recipe, model: Net) -> Any:
    if recipe.groups == "one":
        return model.parameters()
    head = {"params": list(model.out.parameters()), "lr": 0.02}
    return [{"params": [*model.hidden.parameters(), *model.norm.parameters()]}, head]


def train(recipe: Recipe, model_dir: Path | None) -> Outcome:
    """Run a recipe on csrun if a folder is given, else in plain PyTorch."""
    torch.manual_seed(3)
    random.seed(7)
    settings = Settings()
    plain = Net(recipe.model, recipe.reads, settings).double()
    data = make_data(recipe.data)
    shuffled, dropped = recipe.order == "shuffled", recipe.order == "drop_last"
    loader: Any = DataLoader(data, BATCH, shuffle=shuffled, drop_last=dropped)
    held_out: Any = DataLoader(held_out_data(), BATCH)
    optimizer = OPTIMIZERS[recipe.optimizer](parameters_of(recipe, plain))
    scheduler = SCHEDULERS[recipe.scheduler](optimizer)
    HOOKS[recipe.hooks](optimizer)  # after the scheduler, which wraps the optimizer's own step
    model: nn.Module = plain
    if model_dir is not None:
        options = {"save_checkpoints_steps": recipe.checkpoints} if recipe.checkpoints else {}
        cbtorch.initialize(model_dir=model_dir, **options)
        model = cbtorch.module(plain)
        if recipe.script != "own loader":
            loader = cbtorch.dataloader(loader)
        held_out = cbtorch.dataloader(held_out)
    loop = Loop(model, plain, optimizer, data, settings)
    set_scale(loop, 1.0)
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
    """One pass of training; return its losses, and the norms of gradients that it clips."""
    losses: list[Any] = []
    loop.model.train()
    for step, (x, y) in enumerate(loader):
        is_read = recipe.reading == "each" or (recipe.reading == "third" and step % 3 == 2)
        if recipe.clearing != "after":
            loop.optimizer.zero_grad(set_to_none=recipe.clearing == "none")
        loss = loss_of(recipe.script, loop, x, y)
        loss.backward()
        if recipe.edit == "clip":
            norm = nn.utils.clip_grad_norm_(loop.plain.parameters(), 0.5)
            losses.append(norm.item() if is_read else norm)
        elif recipe.edit == "scale" and loop.plain.out.weight.grad is not None:
            loop.plain.out.weight.grad.mul_(0.5)
        loop.optimizer.step()
        if recipe.clearing == "after":
            loop.optimizer.zero_grad()
        if scheduler is not None and type(scheduler).__name__ in ("StepLR", "CosineAnnealingLR"):
            scheduler.step()
        losses.append(loss.item() if is_read else loss.detach())
    return [float(loss) for loss in losses]


def loss_of(script: str, loop: Loop, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Loss of a batch, with the terms that the script adds."""
    loop.steps += 1
    if script == "noise":
        x = x + 0.1 * torch.randn_like(x)
    elif script == "mask":
        x = x * (torch.rand(len(x), 1) < 0.8).double()
    out = loop.model(x)
    if script == "carried":
        before, loop.center = loop.center, 0.9 * loop.center + 0.1 * out.detach().mean(0)
        out = out - before
    loss = nn.functional.cross_entropy(out, y)
    if script == "number":
        loss = loss * (1 + 0.1 * loop.steps)
    elif script == "term" and loop.steps % 3 == 0:
        loss = (
            loss
            + 0.1 * loop.steps * (out * torch.rand(out.shape[1], dtype=x.dtype)).square().mean()
        )
    return loss


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
