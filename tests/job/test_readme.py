"""What the README shows is true: its own run.py, and the quickstart."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from support.jobs import Workplace

CHECKOUT = Path(__file__).parents[2]
FINAL_LOSS = re.compile(r"Loss for final step: [\d.e-]+")


def test_the_script_of_the_readme_trains_alike_on_the_cpu_and_on_a_system(
    tmp_path: Path, state: str
) -> None:
    section = (CHECKOUT / "README.md").read_text().split("## Your own run.py\n")[1]
    script = re.match(r"(?:\n|    .*\n)+", section)
    assert script
    place = Workplace(tmp_path)
    place.script(dedent(script[0]))
    alone = subprocess.run(
        [sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    (tmp_path / "model_dir").rename(tmp_path / "model_dir_cpu")
    job = place.run("--total-nodes", "3", "python-ws", "run.py")
    losses = [FINAL_LOSS.findall(done.stdout + done.stderr) for done in (alone, job)]
    assert len(losses[0]) == 1, alone.stderr
    assert losses[0] == losses[1], job.stderr
    assert (tmp_path / "model_dir" / "model-ckpt-300.safetensors").exists()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout to run a script in, of this one's files and of the environment that runs this."""
    copy = tmp_path / "checkout"
    shutil.copytree(CHECKOUT / "scripts", copy / "scripts")
    for name in ("setup.cfg", "reference_models"):
        (copy / name).symlink_to(CHECKOUT / name)
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
    assert f"rm -r {model_dir}\n" in listing
    assert not list(temporary.iterdir())
    assert FINAL_LOSS.search(listing)
    accuracy = re.search(r"accuracy = ([\d.]+)", listing)
    assert accuracy
    assert float(accuracy[1]) >= 0.95
