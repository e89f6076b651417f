"""Scripts that provoke each row of the table of refusals in docs/pytorch.md.

A row is named by its first column. The line that its message names ends with `# here`.
`python -m support.refusals NAME ...` runs some of them, and without a name all of them.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from support.torch_loops import Kit

PAGE = Path(__file__).parents[3] / "docs" / "pytorch.md"
PYTHON, PIPELINED, STREAMING = "python", "python-pt", "python-ws"  # the ways of running a script
WAYS = (PYTHON, PIPELINED, STREAMING)
Provoke = Callable[[Path], None]


@dataclass(frozen=True)
class Refusal:
    """A script that is refused.

    provoke: runs it, with a separate folder as model_dir.
    elsewhere: why some ways of running do not have this message, by way.
    systems: number of CS systems that it needs in a job.
    ends_job: other tasks end with it, or find it, so that no script can follow in its job.
    """

    name: str
    row: str
    provoke: Provoke
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    systems: int = 1
    ends_job: bool = False


_found: dict[str, Refusal] = {}


def refused(
    row: str, *, systems: int = 1, ends_job: bool = False, **elsewhere: str
) -> Callable[[Provoke], Provoke]:
    """Register a script: a function of its model_dir. elsewhere: as `python_pt="reason"`."""

    def register(provoke: Provoke) -> Provoke:
        ways = {way.replace("_", "-"): reason for way, reason in elsewhere.items()}
        name: str = provoke.__name__
        assert name not in _found, f"two scripts are called {name}"
        _found[name] = Refusal(name, row, provoke, ways, systems, ends_job)
        return provoke

    return register


def refused_loop(
    row: str, *layers: Any, kit: Callable[..., Any] = Kit, **options: Any
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Register the loop of a Session: a function of its kit.

    layers: those of the kit's model. options: of `initialize`, `optimizer` of the kit, and
    `ends_job` as in `refused`.
    """
    ends_job = options.pop("ends_job", False)
    optimizer = {name: options.pop(name) for name in ("optimizer",) if name in options}

    def register(loop: Callable[[Any], None]) -> Callable[[Any], None]:
        def provoke(folder: Path) -> None:
            made = kit(*layers, **optimizer)
            with made.session(folder, **options):
                loop(made)

        provoke.__name__ = loop.__name__
        refused(row, ends_job=ends_job)(provoke)
        return loop

    return register


def refused_model(row: str, kit: Callable[..., Any] = Kit, **options: Any) -> Callable[[Any], Any]:
    """Register a class of models, of which one is trained. options: of `initialize`."""

    def register(model: Any) -> Any:
        def train(made: Any) -> None:
            made.train_once()

        train.__name__ = model.__name__
        refused_loop(row, model(), kit=kit, **options)(train)
        return model

    return register


@cache
def refusals() -> dict[str, Refusal]:
    """Return all scripts, by name."""
    for module in iter_modules(__path__):
        if not module.name.startswith("_"):
            import_module(f"{__name__}.{module.name}")
    return _found


def messages_of_the_page() -> dict[str, str]:
    """First column to second, of the table."""
    section = PAGE.read_text().partition("## What is refused")[2].partition("\n## ")[0]
    found = [line.strip("| ").split(" | ") for line in section.splitlines() if " | " in line]
    return {row[0]: row[1].strip("`") for row in found if row[0] != "construct"}


def fault_of(refusal: Refusal, message: str) -> str:
    """Say how a message is not that of the row, or does not name the line; empty if it is right."""
    expected = messages_of_the_page()[refusal.row]
    if expected not in message:
        return f"{refusal.name}: {expected!r} is not in {message!r}"
    place = re.match(r"(\S+\.py):(\d+): ", message)
    if place is None:
        return f"{refusal.name}: no line at the beginning of {message!r}"
    line = Path(place[1]).read_text().splitlines()[int(place[2]) - 1]
    return "" if line.endswith("# here") else f"{refusal.name}: {line.strip()!r} in {message!r}"
