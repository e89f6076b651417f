"""The README's run.py and quickstart."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import Sandbox
from support.pages import CHECKOUT, README, blocks, section

FINAL_LOSS = re.compile(r"Loss for final step: [\d.e-]+")


@pytest.fixture
def place(tmp_path: Path, state: str) -> Sandbox:
    """A folder with the README's own run.py."""
    place = Sandbox(tmp_path)
    place.script(next(blocks(section(README, "Your own run.py"))))
    return place


def alone(place: Sandbox, *arguments: str) -> str:
    """`python run.py` to its end; what it says."""
    command = [sys.executable, "run.py", *arguments]
    done = subprocess.run(command, cwd=place.path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_script_of_the_readme_trains_alike_on_the_cpu_and_on_a_system(
    place: Sandbox,
) -> None:
    trained = alone(place)
    (place.path / "model_dir").rename(place.path / "model_dir_cpu")
    job = place.run("--total-nodes", "3", "python-ws", "run.py", "--mode", "train")
    assert len(FINAL_LOSS.findall(trained)) == 1
    assert FINAL_LOSS.findall(trained) == FINAL_LOSS.findall(job.stdout), job.stderr
    assert (place.path / "model_dir" / "model-ckpt-300.safetensors").exists()
    assert "Saving dict for global step 300" in alone(place, "--mode", "eval")
    assert "sample 63: " in alone(place, "--mode", "predict", "--eval_steps", "1")


def test_the_script_of_the_readme_compiles_and_trains_nothing(place: Sandbox) -> None:
    command = ("python-ws", "run.py", "--compile_only")
    done = place.run(*command, command="csrun_cpu")
    assert done.returncode == 0, done.stderr
    assert list((place.path / "model_dir").glob("tfcs_*/program.py"))
    assert not list((place.path / "model_dir").glob("model-ckpt-*"))


@pytest.mark.slow
def test_the_input_of_the_readmes_script_is_analysed(place: Sandbox) -> None:
    command = ("--json", "python-ws", "run.py", "--validate_only")
    done = place.run(*command, command="cs_input_analyzer")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["launch"][0] == "csrun_wse"
    assert not list(place.path.glob("model_dir/model-ckpt-*"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout to run a script in, of this one's files and of the environment that runs this."""
    copy = tmp_path / "checkout"
    for name in ("scripts", "reference_models"):  # where commands run, a link to a report is left
        shutil.copytree(CHECKOUT / name, copy / name, symlinks=True)
    (copy / "setup.cfg").symlink_to(CHECKOUT / "setup.cfg")
    (copy / ".venv").mkdir()
    for entry in Path(sys.prefix).iterdir():
        (copy / ".venv" / entry.name).symlink_to(entry)
    stamp = copy / ".venv" / ".installed-"
    stamp.unlink(missing_ok=True)
    stamp.touch()  # newer than setup.cfg, so that nothing is installed into that environment
    return copy


@pytest.mark.slow
def test_the_quickstart_names_what_it_left_and_leaves_nothing_else(
    checkout: Path, tmp_path: Path, state: str
) -> None:
    temporary, model_dir = tmp_path / "tmp", checkout / "model_dir_quickstart"
    temporary.mkdir()
    model_dir.mkdir()
    (model_dir / "of_an_earlier_one").touch()
    done = subprocess.run(
        [checkout / "scripts" / "quickstart"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert done.returncode == 0, done.stderr
    listing = done.stdout.split(f"What is in {model_dir}:")[1]
    for name in ("checkpoint", "model-ckpt-3000.safetensors", "performance/performance.json"):
        assert f"  {name}\n" in listing
    assert "of_an_earlier_one" not in listing
    assert not list(temporary.iterdir())
    assert FINAL_LOSS.search(listing)
    accuracy = re.search(r"accuracy = ([\d.]+)", listing)
    assert accuracy
    assert float(accuracy[1]) >= 0.95
    link = checkout / "reference_models" / "fc_mnist" / "compile_report.txt"
    assert link.is_symlink()
    (remove,) = re.findall("^To remove what this run left: +(rm .*)", listing, re.MULTILINE)
    subprocess.run(remove, shell=True, check=True)
    assert not model_dir.exists()
    assert not link.is_symlink()
    assert f"rm -rf {state} " in listing
