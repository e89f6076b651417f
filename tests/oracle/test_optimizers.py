"""PyTorch's optimizers with PyTorch's test options: its losses and weights, or a listed refusal.

A row of the table is an optimizer, an option set by PyTorch's description, and words of the
refusal; all other option sets must train.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.oracle import LINE  # noqa: E402
from support.torch_loops import beside  # noqa: E402
from torch import nn  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402

TABLE = Path(__file__).parent / "tables/optimizers.txt"
KINDS = [n for n, kind in vars(torch.optim).items() if isinstance(kind, type) and n != "Optimizer"]
# Matrices alone, which is all that Muon takes.
LAYERS = (nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 4, bias=False))

# PyTorch keeps NAdam's product of momenta in float32, csrun in float64.
TOLERANCE = {"NAdam": 1e-6}


@pytest.fixture(autouse=True)
def wide_muon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyTorch orthogonalize Muon's updates in the run's precision instead of bfloat16."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor)


def refusals() -> dict[tuple[str, str], str]:
    """Words of each refusal, by optimizer and option set."""
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    rows = [[part.strip() for part in line.split("|")] for line in lines if line]
    return {(kind, options): words for kind, options, words in rows}


def option_sets(kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    from torch.testing._internal.common_optimizers import optim_db  # which is slow

    (info,) = (info for info in optim_db if info.optim_cls is getattr(torch.optim, kind))
    for given in info.optim_inputs_func(device="cpu"):
        yield given.desc, given.kwargs


def refusal_of(kind: str, options: Mapping[str, Any], folder: Path) -> str | None:
    """Train in csrun and PyTorch, and fail on different numbers; return the text of a refusal."""
    made = getattr(torch.optim, kind)
    try:
        beside(
            lambda kit: kit.train_once(),
            folder,
            *LAYERS,
            rel=TOLERANCE.get(kind, 1e-10),
            optimizer=lambda parameters: made(parameters, **options),
        )
    except UsageError as refusal:
        return str(refusal)
    return None


def check(kind: str, desc: str, options: Mapping[str, Any], folder: Path) -> None:
    words, found = refusals().get((kind, desc)), refusal_of(kind, options, folder)
    if words is None:
        assert found is None, f"{kind} {desc}: refused: {found}"
    else:
        assert found is not None, f"{kind} {desc}: is equal: take its row out of {TABLE.name}"
        assert LINE.search(found), found
        assert words in found, found


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_the_last_option_set_of_an_optimizer(kind: str, tmp_path: Path) -> None:
    *_, (desc, options) = option_sets(kind)
    check(kind, desc, options, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_all_option_sets_of_an_optimizer(kind: str, tmp_path: Path) -> None:
    for number, (desc, options) in enumerate(option_sets(kind)):
        check(kind, desc, options, tmp_path / str(number))


def test_each_row_is_of_the_database() -> None:
    known = {(kind, desc) for kind in KINDS for desc, _ in option_sets(kind)}
    assert set(refusals()) <= known
