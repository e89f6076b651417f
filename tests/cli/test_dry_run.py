"""csrun_wse --dry-run: as text and as JSON, without running anything."""

import json
import re
from pathlib import Path

import pytest

from csrun.cli.csrun_wse import run
from csrun.cli.tables import ranges


@pytest.fixture
def script(tmp_path: Path, state: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "run.py"
    path.write_text("raise SystemExit('this was run')")
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.usefixtures("script")
def test_json_holds_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["python-ws", "run.py", "-o", "a b"]
    assert run(["--dry-run", "--json", "--total-nodes=4", "--cyclic", *command]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["command"] == command
    assert plan["mode"] == "WEIGHT_STREAMING"
    assert [task["node_id"] for task in plan["tasks"]] == [0, 1, 2, 3, 2, 3]
    assert [task["node"] for task in plan["tasks"]] == [f"node{n}" for n in (1, 2, 3, 4, 3, 4)]
    assert plan["srun"].endswith("--distribution=cyclic --exclusive python-ws run.py -o 'a b'")
    assert not (tmp_path / "state").exists()


@pytest.mark.usefixtures("script")
def test_the_table_has_a_row_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--dry-run", "--total-nodes", "3", "python-ws", "run.py"]) == 0
    text = capsys.readouterr().out
    rows = re.findall(r"^(\d+) +(\w+) +(\w+) +[\d,-]+$", text, re.MULTILINE)
    assert rows == [
        ("0", "chief", "node1"),
        ("1", "memoryx", "node2"),
        ("2", "streamer", "node3"),
        ("3", "streamer", "node3"),
    ]
    assert "On a cluster: srun --unbuffered" in text
    assert "4 tasks request 288" in text


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize(
    ("wrong", "fragment"),
    [
        (["--total-nodes", "17"], "--total-nodes 16"),
        (["--total-nodes", "2"], "--total-nodes 3"),
        (["--single-task-nodes", "1"], "--single-task-nodes 2"),
        (["--total-nodes", "5", "--single-task-nodes", "9"], "--single-task-nodes 4"),
        (["--tasks-per-node", "64", "--cpus-per-task", "4"], "--cpus-per-task 2"),
        (["--tasks-per-node", "300"], "--tasks-per-node 128"),
        (["--tasks-per-node", "300", "--cpus-per-task", "300"], "--tasks-per-node 128"),
    ],
)
def test_an_impossible_layout_names_one_that_works(
    wrong: list[str], fragment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--dry-run", *wrong, "python-ws", "run.py"]) == 2
    advice = capsys.readouterr().err.split(": use ")[1]
    assert fragment in advice
    replaced = re.findall(r"(--[a-z-]+) (\d+)", advice.split(" or ")[0])
    options = dict(zip(wrong[::2], wrong[1::2], strict=True)) | dict(replaced)
    words = [word for pair in options.items() for word in pair]
    assert run(["--dry-run", *words, "python-ws", "run.py"]) == 0


@pytest.mark.usefixtures("script")
def test_json_without_a_dry_run_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--json", "python-ws", "run.py"]) == 2
    assert "--json needs --dry-run" in capsys.readouterr().err


def test_ranges() -> None:
    assert ranges((0, 1, 2, 3, 8)) == "0-3,8"
    assert ranges((5,)) == "5"
