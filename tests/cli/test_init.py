"""csrun init: projects that run unmodified."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.shell_commands import run_lines, write_commands

from csrun.cli import csrun, frame
from csrun.cli.init import FOLDER, NEXT, template_files

# What each one's evaluation must report, far from an untrained model's.
RESULTS = {
    "regression": (r"loss = ([\d.]+)$", 0.0, 0.05),  # variance of the values: 0.8; noise: 0.01
    "text": (r"perplexity = ([\d.]+)", 1.0, 2.0),  # guessing: 128
    "image": (r"accuracy = ([\d.]+)", 0.9, 1.0),  # guessing: 0.5
    "torch": (r"accuracy = ([\d.]+)", 0.85, 1.0),
}

REFERENCE_MODEL = "fc_mnist"


def init(*arguments: object) -> int:
    return frame.run(csrun.csrun, ["init", *map(str, arguments)])


@pytest.mark.parametrize("template", NEXT)
def test_a_project_is_written_once(
    template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "new" / "project"
    assert init(template, project) == 0
    shown = capsys.readouterr().out
    assert f"cd {project}\n" in shown
    for name in ("README.md", "run.py"):
        assert (project / name).read_bytes() == (FOLDER / template / name).read_bytes()
    (project / "run.py").write_text("mine")
    (project / "README.md").unlink()
    assert init(template, project) == 2
    assert "run.py" in capsys.readouterr().err
    assert (project / "run.py").read_text() == "mine"
    assert not (project / "README.md").exists()


def test_every_folder_is_a_template() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(NEXT)


def test_reference_models_come_with_params_and_digits_alone_of_data() -> None:
    digits = "data/train-images-idx3-ubyte.gz"
    assert {"configs/params.yaml", digits, "model.py"} <= set(template_files("fc_mnist"))
    assert not [name for name in template_files("gpt2") if name.startswith("data/")]


def test_a_misspelt_template_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("imagge", tmp_path) == 2
    assert "did you mean image?" in capsys.readouterr().err


def test_a_project_trains_in_one_process(tmp_path: Path) -> None:
    assert init("regression", tmp_path) == 0
    for arguments in ([], ["--mode", "eval"]):
        done = subprocess.run(
            [sys.executable, "run.py", *arguments], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert_result("regression", done.stdout + done.stderr)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("template", [*RESULTS, REFERENCE_MODEL])
def test_the_printed_commands_run_and_reach_the_number_that_the_readme_explains(
    template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reference model is trained for few steps; tests/docs runs the commands of each one."""
    if template == "torch":
        pytest.importorskip("torch")
    write_commands(tmp_path / "bin")
    project = tmp_path / "project"
    assert init(template, project) == 0
    for params in project.glob("configs/*.yaml"):
        params.write_text(re.sub(r"max_steps: \d+", "max_steps: 20", params.read_text()))
    lines = [line[4:] for line in capsys.readouterr().out.splitlines() if line.startswith("    ")]
    assert lines[0] == f"cd {project}"
    said = run_lines(lines, tmp_path)
    if template in RESULTS:
        assert_result(template, said)


def assert_result(template: str, said: str) -> None:
    pattern, low, high = RESULTS[template]
    found = re.findall(pattern, said, re.MULTILINE)
    assert low <= float(found[-1]) <= high
