"""cs_input_analyzer's command line, with a CMD that writes known measurements."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.jobs import Sandbox, gone
from support.pipelines import MEASURING_SCRIPT
from support.terminals import terminal

from csrun.cli.cs_input_analyzer import cs_input_analyzer
from csrun.cli.frame import run

NAME = "cs_input_analyzer"
LAST = "--compile_only"
MISTAKES = [
    ([], "no command given"),
    (["python", "run.py"], "run.py: must only compile or validate: append --compile_only"),
    (["python", "run.py", "--mode", "train"], "must only compile or validate"),
    (["--target", "0", "python", "x.py", LAST], "--target: must be a positive number, got 0"),
    (["--target", "nan", "python", "x.py", LAST], "--target: must be a positive number, got nan"),
    (["--target", "fast", "python", "x.py", LAST], "--target.*'fast' is not a valid float"),
    (["--available-nodes", "17", "python", "x.py", LAST], "at most 16.*use --available-nodes 16"),
    (["--available_nodes=2", "python-ws", "x.py", LAST], "at least 3 for python-ws.*got 2"),
    (
        ["--output", "/dev/null/x", "python", "run.py", LAST],
        "--output: /dev/null/x: cannot be created: Not a directory",
    ),
    (["--mount-dirs", "/no/such", "python", "x.py", LAST], "/no/such is not a folder"),
    (["--nodes", "4", "python", "x.py", LAST], "No such option.*--nodes"),
    (["no-such-command", LAST], "no-such-command: command not found"),
    (["python", "missing.py", LAST], "missing.py: no such file in "),
    (["python", "missing.py"], "missing.py: no such file in "),
]


@pytest.fixture
def place(tmp_path: Path) -> Sandbox:
    folder = Sandbox(tmp_path)
    folder.script(MEASURING_SCRIPT)
    return folder


def analyze(place: Sandbox, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return place.run(*arguments, command=NAME)


def nothing_left(place: Sandbox) -> bool:
    return not list((place.path / "state").rglob("analysis-*"))


@pytest.mark.usefixtures("state", "own_folder")
@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2_before_anything_runs(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run.py").touch()
    assert run(cs_input_analyzer, arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"{NAME}: error: ")
    assert re.search(message, err)
    assert not (tmp_path / "state").exists()


def test_it_prints_the_report_and_writes_it_where_it_was_called(place: Sandbox) -> None:
    done = analyze(place, "python-ws", "run.py", "--params", "a b", "--mode=compile_only")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "arguments: --params a b --mode=compile_only" in done.stdout
    assert "Target:        176,000 samples/s, measured: the wafer of this machine" in done.stdout
    assert "  nodes: 3\n  tasks_per_node: 2\n  cpus_per_task: 1\n" in done.stdout
    line = "csrun_wse --total-nodes 3 --tasks-per-node 2 --cpus-per-task 1 python-ws run.py"
    assert f"  {line} --params 'a b' --mode=train\n" in done.stdout
    told = json.loads((place.path / "input_analysis.json").read_text())
    assert told["solution"]["layout"]["samples_per_s"] == pytest.approx(200_000)
    assert "Input pipeline analysis" in (place.path / "input_analysis.html").read_text()
    assert nothing_left(place)


def test_json_is_all_that_standard_output_gets(place: Sandbox) -> None:
    options = ("--json", "--output", "new/reports", "--verify", "--target", "90000")
    done = analyze(place, *options, "python", "run.py", LAST)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told == json.loads((place.path / "new" / "reports" / "input_analysis.json").read_text())
    assert told["target"]["samples_per_s"] == 90_000
    assert "arguments: --compile_only" in done.stderr
    assert told["verified"]["fed"]["samples_per_s"] == 160_000
    assert not (place.path / "input_analysis.json").exists()


@pytest.mark.slow
def test_verify_runs_the_training_in_the_recommended_layout(place: Sandbox) -> None:
    done = analyze(place, "--verify", "python-ws", "run.py", LAST)
    assert done.returncode == 0, done.stderr
    assert "Verifying: python-ws run.py\n" in done.stdout
    shown = " ".join(done.stdout.split())
    expected = "2 streamers on 3 nodes, 5 s: measured 160,000 samples/s, predicted 200,000 (-20.0%)"
    assert expected in shown
    told = json.loads((place.path / "input_analysis.json").read_text())
    assert told["verified"]["deviation"] == pytest.approx(-0.2)
    assert expected in (place.path / "input_analysis.html").read_text()
    assert nothing_left(place)


def test_a_job_that_does_not_tell_what_it_fed_is_an_error(place: Sandbox) -> None:
    done = analyze(place, "--verify", "python", "run.py", "lazy", LAST)
    assert done.returncode == 1
    assert "its streamers reported no rates" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_the_exit_code_of_a_failing_command_is_passed_on(
    place: Sandbox, script: str, code: int
) -> None:
    done = analyze(place, "sh", "-c", script, LAST)
    assert done.returncode == code
    assert f"CMD ended with exit code {code}: no analysis" in done.stderr
    assert not (place.path / "input_analysis.json").exists()
    assert nothing_left(place)


def test_a_command_that_measures_nothing_is_an_error(place: Sandbox) -> None:
    done = analyze(place, "python", "-c", "pass", LAST)
    assert done.returncode == 1
    assert "no measurements found: run a script with python, python-pt or python-ws" in done.stderr
    assert nothing_left(place)


def test_the_target_is_the_estimate_where_no_wafer_was_measured(place: Sandbox) -> None:
    done = analyze(place, "python", "run.py", "no-wafer", LAST)
    assert "150,000 samples/s, the compile's estimate of the system" in done.stdout
    done = analyze(place, "python", "run.py", "no-wafer", "no-estimate", "--validate_only")
    assert done.returncode == 1
    assert "pass --target" in done.stderr


def test_a_site_that_was_named_is_in_the_line_to_run(place: Sandbox, tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "site_configs" / "local.yaml"
    (tmp_path / "my site.yaml").write_text(shipped.read_text())
    done = analyze(place, "--site", "my site.yaml", "python", "run.py", LAST)
    assert "--cpus-per-task 1 --site 'my site.yaml' python run.py\n" in done.stdout


@pytest.mark.parametrize("moment", ["measuring", "feeding"])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_one_leaves_no_process_and_no_folder(
    place: Sandbox, moment: str, signum: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.path)
    command = (sys.executable, "-m", "csrun.cli.cs_input_analyzer", "--verify")
    environment = {**os.environ, "CSRUN_STATE_DIR": str(place.path / "state"), "TERM": "dumb"}
    words = ("python", "run.py", f"sleep-{moment}", LAST)
    with terminal(*command, *words, environment=environment) as tty:
        tty.wait_for("asleep")
        pids = [child.pid for child in psutil.Process(tty.pid).children(recursive=True)]
        if signum is signal.SIGINT:
            tty.type("\x03")
        else:
            psutil.Process(tty.pid).send_signal(signum)
        assert tty.exit_code() == 128 + signum
        assert gone(pids)
    assert nothing_left(place)


def test_help_imports_click_and_nothing_heavy() -> None:
    code = (
        "import sys\nfrom csrun.cli.cs_input_analyzer import cs_input_analyzer\n"
        "from csrun.cli.frame import run\nrun(cs_input_analyzer, ['--help'])\n"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'rich', 'plotext', 'msgspec')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert "--available-nodes" in done.stdout
