"""Loops drawn from seeds beside plain PyTorch: its numbers, or a refusal that names the line."""

import logging
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support import random_loops  # noqa: E402
from support.jobs import Workplace  # noqa: E402

from csrun.base.errors import CsrunError  # noqa: E402

BLOCK = 25  # loops of a test
QUICK, SLOW = 100, 500
LEAST_EQUAL = 0.3  # of a block: a front end that refuses everything fails
# PyTorch's own advice on a step that is replaced after a scheduler is made, on both sides.
pytestmark = pytest.mark.filterwarnings("ignore:Seems like `optimizer.step:UserWarning")
LINE = re.compile(r"random_loops\.py:\d+: ")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)  # some thousand lines of runs
    yield
    logging.disable(logging.NOTSET)


def trained(recipe: random_loops.Recipe, folder: Path) -> random_loops.Outcome | str:
    """Run a recipe on csrun; return what it leaves, or the refusal."""
    try:
        return random_loops.train(recipe, folder)
    except CsrunError as refusal:
        return str(refusal)


def outcome(seed: int, folder: Path) -> str:
    """Run a seed's loop on both sides; return "equal" or "refused", and fail on all else."""
    recipe = random_loops.draw(seed)
    expected = random_loops.train(recipe, None)
    found = trained(recipe, folder / str(seed))
    if isinstance(found, str):
        assert LINE.search(found), f"seed {seed}, {recipe}: no line in: {found}"
        assert not random_loops.is_plain(recipe), f"seed {seed}, {recipe}: refused: {found}"
        return "refused"
    differs = random_loops.difference(found, expected)
    assert differs is None, f"seed {seed}, {recipe}: {differs}"
    return "equal"


def check_block(first: int, folder: Path) -> None:
    outcomes = Counter(outcome(seed, folder) for seed in range(first, first + BLOCK))
    assert outcomes["equal"] >= LEAST_EQUAL * BLOCK, outcomes


@pytest.mark.parametrize("first", range(0, QUICK, BLOCK))
def test_a_loop_has_the_numbers_of_pytorch_or_is_refused(first: int, tmp_path: Path) -> None:
    check_block(first, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(QUICK, QUICK + SLOW, BLOCK))
def test_many_loops_have_the_numbers_of_pytorch(first: int, tmp_path: Path) -> None:
    check_block(first, tmp_path)


# Seeds of loops with a change of each kind, of which some are refused.
JOB_SEEDS = (0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", ["python-ws", "python-pt"])
@pytest.mark.parametrize("seed", JOB_SEEDS)
def test_a_job_has_the_numbers_or_the_refusal_of_one_process(
    interpreter: str, seed: int, tmp_path: Path
) -> None:
    script = Path(random_loops.__file__)
    alone, job = Workplace(tmp_path / "alone"), Workplace(tmp_path / "job")
    for place in (alone, job):
        place.path.mkdir()
    nodes = ["--total-nodes", "3", "--tasks-per-node", "1"]
    one = alone.run(sys.executable, str(script), str(seed), command="csrun_cpu")
    many = job.run(*nodes, interpreter, str(script), str(seed))
    assert one.returncode == many.returncode, many.stderr
    assert said(many.stdout + many.stderr) == said(one.stdout + one.stderr)


def said(output: str) -> list[str]:
    """Return the line of the numbers, or that of the refusal from the script's place on."""
    lines = [line for line in output.splitlines() if line.startswith("numbers")]
    return lines or [line[match.start() :] for line in output.splitlines()
                     if (match := LINE.search(line))][-1:]  # fmt: skip
