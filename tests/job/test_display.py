"""Progress of a run: shown on a terminal, and not in a pipe."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support.fc_mnist import RUN, TWO_STREAMERS, FcMnist

STEPS = 300
WSE = [sys.executable, "-m", "csrun.cli.csrun_wse", *TWO_STREAMERS, "python-ws"]
COMMANDS = {"cpu": [sys.executable], "wse": WSE}
DEEP = [8] * 200  # layers: compiled in several times what a bar waits for
STAGE = re.compile(
    r"compiling .*━.* \d+/\d+ +(canonical|folding|gradient|learning|common|dead|copies|matching)"
)
BAR = re.compile(r"training .*━.* \d+/300 .*loss \d.* ETA ")
LOGGED = re.compile(r"step \d+  loss \S+  \S+ samples/s \(average \S+\)")


@pytest.fixture
def long_place(place: FcMnist) -> FcMnist:
    place.configure(runconfig__max_steps=STEPS, runconfig__log_steps=50)
    return place


def on_a_terminal(place: FcMnist, command: list[str], *arguments: str) -> str:
    """What a terminal of 200 columns gets."""
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "CSRUN_STATE_DIR": str(place.path / "state"),
        "TERM": "xterm",
        "COLUMNS": "200",
    }
    with subprocess.Popen(
        [*command, RUN, *place.own(arguments)],
        cwd=place.path, env=environment, stdin=theirs, stdout=theirs, stderr=theirs,
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 1 << 16):
                shown += data
        except OSError:  # the last one at the terminal has closed it
            pass
        os.close(ours)
    assert process.returncode == 0, shown
    return shown.decode()


def lines_of(shown: str) -> list[str]:
    """The lines that were drawn, without colours."""
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", shown)]


@pytest.mark.parametrize("command", ["wse", pytest.param("cpu", marks=pytest.mark.slow)])
def test_a_terminal_shows_a_bar_below_the_log_lines(long_place: FcMnist, command: str) -> None:
    shown = on_a_terminal(long_place, COMMANDS[command])
    lines = lines_of(shown)
    assert any(BAR.search(line) for line in lines), shown
    logged = [line for line in lines if LOGGED.fullmatch(line.rstrip())]
    assert len(logged) == 1 + STEPS // 50, shown  # the first step, too


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("cpu", "--validate_only"),
        ("wse", "--validate_only"),
        pytest.param("wse", "--compile_only", marks=pytest.mark.slow),
    ],
)
def test_a_terminal_shows_the_stage_of_a_long_compile(
    place: FcMnist, command: str, option: str
) -> None:
    place.configure(model__hidden_sizes=DEEP)
    shown = on_a_terminal(place, COMMANDS[command], option)
    assert any(STAGE.search(line) for line in lines_of(shown)), shown
    assert "\x1b[2K" in shown.rpartition("compiling")[2]  # its line is erased


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_compile_has_no_bar_any_more_while_it_trains(place: FcMnist, command: str) -> None:
    place.configure(
        model__hidden_sizes=DEEP,
        runconfig__max_steps=20,
        runconfig__save_checkpoints_steps=20,
    )
    before, training, after = on_a_terminal(place, COMMANDS[command]).partition("training ")
    assert "compiling" in before
    assert training
    assert "compiling" not in after


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_gets_plain_lines(trained_once: Callable[[str], Any], command: str) -> None:
    done = trained_once(command).done
    text = done.stdout + done.stderr
    assert "━" not in text
    assert "\x1b" not in text
    assert text.count("\nINFO:csrun:global_step = ") == 2  # the first and the last


def test_a_closed_output_is_done_without(place: FcMnist) -> None:
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, RUN, *place.own(())]
    done = subprocess.run(command, cwd=place.path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Loss for final step" in done.stderr
