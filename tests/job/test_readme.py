"""What the README shows is true: its own run.py, and the quickstart."""

import re
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


@pytest.mark.slow
def test_the_quickstart_shows_what_it_left(tmp_path: Path, state: str) -> None:
    model_dir = tmp_path / "model_dir"
    done = subprocess.run(
        [CHECKOUT / "scripts" / "quickstart", model_dir],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    listing = done.stdout.split(f"What is in {model_dir}:")[1]
    for name in ("checkpoint", "model-ckpt-3000.safetensors", "performance/performance.json"):
        assert f"  {name}\n" in listing
    assert FINAL_LOSS.search(listing)
    accuracy = re.search(r"accuracy = ([\d.]+)", listing)
    assert accuracy
    assert float(accuracy[1]) >= 0.95
