"""The ingredients of a drawn loop."""

import random
from dataclasses import dataclass, fields
from typing import Any

from support.random_loops.ingredients import CHANGES, HOOKS, OPTIMIZERS, SCHEDULERS


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
    script: str

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
    "script": ("nothing", "noise", "mask", "number", "carried", "term", "own loader"),
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


def is_plain(recipe: Recipe) -> bool:
    """Whether nothing changes around the steps, so that a refusal is an error."""
    return (
        not recipe.changes
        and recipe.hooks == "none"
        and recipe.reads not in ("counter", "random")
        and recipe.script == "nothing"
    )
