"""The command line: accepted and refused options, and the time to print help."""

import re
import resource
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from csrun.cli.csrun_wse import run

MISTAKES = [
    (["--total-nodez", "3", "true"], "Did you mean.*--total-nodes"),
    (["--total-nodes", "none", "true"], "--total-nodes.*none"),
    (["--total-nodes", "0", "true"], "--total-nodes.*0"),
    ([], "no command given"),
    (["--total_nodes=2", "python-ws", "{script}"], "at least 3 for python-ws"),
    (["--single_task_nodes", "4", "python", "{script}"], "--single-task-nodes must be 0 to 3"),
    (["python", "missing.py"], "missing.py: no such file"),
    (
        ["--total-nodes=1", "python", "{script}", "-p", "a.yaml"],
        "--params: a.yaml: cannot be read: No such file",
    ),
    (["--total-nodes=1", "python", "{script}", "--cs_ip", "nowhere"], "no such system on site"),
    (["pyton-ws", "{script}"], "pyton-ws: command not found; did you mean python-ws?"),
    (
        ["--output", "{script}/a.out", "true"],
        "no such folder: .*run.py; create it with mkdir -p",
    ),
    (
        ["--output", "/tmp", "true"],
        "must be a file, got the folder /tmp: name one, e.g. /tmp/%j.out",
    ),
    (["--total-nodes", "two", "true"], "must be a whole number >= 1, got 'two'$"),
    (["no-such-command"], "no-such-command: command not found"),
    (["python-pt", "missing.py"], "missing.py: no such file"),
    (["--site", "nowhere", "true"], "nowhere"),
    (["--mount-dirs", "/no/such/folder", "true"], "/no/such/folder is not a folder"),
]


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "run.py"
    script.touch()
    assert run([word.format(script=script) for word in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("csrun_wse: error: ")
    assert re.search(message, err)
    assert not (tmp_path / "state").exists()


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for option in ("total-nodes", "tasks-per-node", "cpus-per-task", "single-task-nodes"):
        assert f"--{option}" in text
    for option in ("cyclic", "site", "mount-dirs", "label", "dry-run", "json"):
        assert f"--{option}" in text
    assert "output and errors go to standard output" in text


def cpu_seconds(command: list[str]) -> float:
    """CPU time of a command, which does not depend much on other load."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_costs_little_more_than_click() -> None:
    command = shutil.which("csrun_wse", path=str(Path(sys.executable).parent))
    assert command is not None
    pairs = [
        (cpu_seconds([command, "--help"]), cpu_seconds([sys.executable, "-c", "import click"]))
        for _ in range(5)
    ]
    ours_s, click_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    assert ours_s <= 2.5 * click_s


@pytest.mark.parametrize("interpreter", ["python-pt", "python-ws"])
def test_an_interpreter_alone_is_python(interpreter: str, tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text("import sys; print(sys.argv[1:]); sys.exit(4)")
    command = shutil.which(interpreter, path=str(Path(sys.executable).parent))
    assert command is not None
    done = subprocess.run([command, script, "a b"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (4, "['a b']\n", "")
