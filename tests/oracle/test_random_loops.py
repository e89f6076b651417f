"""Seeded random loops against plain PyTorch: equal numbers, or a refusal that names the line."""

import logging
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.jobs import Sandbox  # noqa: E402
from support.random_loops import loop  # noqa: E402
from support.random_loops.loop import Outcome, difference, train  # noqa: E402
from support.random_loops.recipes import Recipe, draw, is_plain  # noqa: E402

from csrun.base.errors import CsrunError  # noqa: E402
from csrun.pytorch.run.session_roles import end  # noqa: E402

QUICK, *SLOW = (range(*ends) for ends in pairwise((0, 10, 25, 50, 75, 100, 125, 150)))  # seeds
LEAST_EQUAL = 0.3  # of a block: a front end that refuses everything fails
# PyTorch's own advice on a step that is replaced after a scheduler is made, on both sides.
pytestmark = pytest.mark.filterwarnings("ignore:Seems like `optimizer.step:UserWarning")
SCRIPT = Path(loop.__file__).with_name("script.py")
USAGE_ERROR = 2  # the exit code of a refusal
LINE = re.compile(r"random_loops/\w+\.py:\d+: ")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)  # some thousand lines of runs
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for each other take longer than such a step
    yield
    torch.set_num_threads(threads)
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all loops, so that they share compiles."""
    return tmp_path_factory.mktemp("loops") / "model_dir"


def trained(recipe: Recipe, model_dir: Path) -> Outcome | str:
    """Run a recipe on csrun; return its result or the refusal."""
    try:
        return train(recipe, model_dir)
    except CsrunError as refusal:
        return str(refusal)
    finally:
        end()
        clear(model_dir)


def clear(model_dir: Path) -> None:
    """Remove all files of a run except for its compiles."""
    for entry in model_dir.iterdir():
        if not entry.is_dir():
            entry.unlink()
        elif not entry.name.startswith("tfcs_"):
            shutil.rmtree(entry)


def outcome(seed: int, model_dir: Path) -> str:
    """Run a seed's loop on both sides; return "equal" or "refused", and fail otherwise."""
    recipe = draw(seed)
    expected = train(recipe, None)
    found = trained(recipe, model_dir)
    if isinstance(found, str):
        assert LINE.search(found), f"seed {seed}, {recipe}: no line in: {found}"
        assert not is_plain(recipe), f"seed {seed}, {recipe}: refused: {found}"
        return "refused"
    differs = difference(found, expected)
    assert differs is None, f"seed {seed}, {recipe}: {differs}"
    return "equal"


def check_block(seeds: range, model_dir: Path) -> None:
    outcomes = Counter(outcome(seed, model_dir) for seed in seeds)
    assert outcomes["equal"] >= LEAST_EQUAL * len(seeds), outcomes


def test_a_loop_has_the_numbers_of_pytorch_or_is_refused(model_dir: Path) -> None:
    check_block(QUICK, model_dir)


@pytest.mark.parametrize("seed", [97, 137])  # numbers of a batch norm that were not set
def test_a_loop_that_once_differed_is_equal(seed: int, model_dir: Path) -> None:
    assert outcome(seed, model_dir) == "equal"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SLOW, ids=str)
def test_many_loops_have_the_numbers_of_pytorch(seeds: range, model_dir: Path) -> None:
    check_block(seeds, model_dir)


JOB_SEEDS = {2: "numbers", 0: "refusal"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", JOB_SEEDS)
def test_a_job_has_the_numbers_or_the_refusal_of_one_process(seed: int, tmp_path: Path) -> None:
    one = trained_in(tmp_path, "csrun_cpu", sys.executable, seed)
    nodes = ("--total-nodes", "3", "--tasks-per-node", "1")
    for interpreter in ("python-ws", "python-pt"):
        assert trained_in(tmp_path, "csrun_wse", interpreter, seed, nodes) == one
    assert one[0] == (JOB_SEEDS[seed] == "refusal") * USAGE_ERROR


def trained_in(
    folder: Path, command: str, interpreter: str, seed: int, options: tuple[str, ...] = ()
) -> tuple[int, list[str]]:
    """Run a seed's loop in a command; return the exit code and the lines to compare."""
    place = Sandbox(folder / Path(interpreter).name)
    place.path.mkdir()
    done = place.run(*options, interpreter, str(SCRIPT), str(seed), command=command)
    return done.returncode, said(done.stdout + done.stderr)


def said(output: str) -> list[str]:
    """Return the line of numbers, or the refusal starting at the script's line."""
    lines = [line for line in output.splitlines() if line.startswith("numbers")]
    return lines or [line[match.start() :] for line in output.splitlines()
                     if (match := LINE.search(line))][-1:]  # fmt: skip
