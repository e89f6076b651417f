"""The cs> prompt on a terminal: keys and output."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs import until
from support.terminals import Terminal, terminal

from csrun.cli.shell.completer import LineHistory

DOWN, TAB, CTRL_C, CTRL_D = "\x1b[B", "\t", "\x03", "\x04"
ESCAPES = re.compile(
    rb"\x1b\[[0-9;?]*(?:[A-Za-z]|$)|\x1b[=>]?|\r"
)  # the last one may be half there
CS = (sys.executable, "-m", "csrun.cli.cs")


def environment(state: str, **more: str) -> dict[str, str]:
    """Environment without cursor position requests, which a test's terminal does not answer."""
    usual = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "CSRUN_STATE_DIR": state}
    return {**os.environ, **usual, **more}


class Person:
    """Terminal session that types keys and reads new output."""

    def __init__(self, shown: Terminal) -> None:
        self._terminal = shown
        self._read = 0

    def sees(self, text: str) -> None:
        """Wait for a text after the last one found."""
        until(lambda: text in self._new())
        self._read += self._new().index(text) + len(text)

    def types(self, text: str, end: str = "\r") -> None:
        self._terminal.type(text + end)

    def does(self, command: str) -> None:
        """Type a whole line at the prompt."""
        self.sees("cs>")
        self.types(command)

    def leaves(self) -> int:
        self.does("exit")
        return self._terminal.exit_code()

    def _new(self) -> str:
        with_escapes = self._terminal.read()
        return ESCAPES.sub(b"", with_escapes).decode(errors="replace")[self._read :]


@pytest.fixture
def person(state: str) -> Iterator[Person]:
    with terminal(*CS, environment=environment(state)) as opened:
        yield Person(opened)


def test_the_originals_transcript(person: Person) -> None:
    person.does("config execmode show")
    person.sees("Configured Execution Mode : PIPELINED\n")
    person.does("system standby")
    person.sees("This puts the system in standby. Do you want to proceed?")
    person.sees("(yes / no)")
    person.types("yes", "\n")
    person.does("config execmode setup")
    person.sees("Weight Streaming")
    person.types(DOWN)
    person.sees("Selected execution mode configuration: ✔ Weight Streaming\n")
    person.does("system activate")
    person.does("config execmode show")
    person.sees("Configured Execution Mode : WEIGHT_STREAMING\n")
    assert person.leaves() == 0


def test_no_is_no_and_a_mistake_does_not_end_the_shell(person: Person) -> None:
    person.does("system standby")
    person.sees("(yes / no)")
    person.types("no", "\n")
    person.sees("cs: error: not confirmed: cs2-01 is unchanged\n")
    person.does("sytem status")
    person.sees("No such command 'sytem'. Did you mean 'system'?\n")
    person.does("system status")
    person.sees("Power        : ACTIVE\n")
    assert person.leaves() == 0


def test_tab_completes_commands_options_and_values(person: Person) -> None:
    person.sees("cs>")
    words = {"conf": "ig", "exec": "mode", "set": "up", "--mo": "de", "weight": "_streaming"}
    for beginning, rest in words.items():
        person.types(beginning, TAB)
        person.sees(rest)
    person.types("--system cs2-0", TAB)
    person.sees("cs2-02")
    person.types(CTRL_C, "")
    assert person.leaves() == 0


def test_tab_completes_what_is_to_be_explained(person: Person) -> None:
    person.sees("cs>")
    for beginning, rest in {"he": "lp", "sys": "tem", "stan": "dby"}.items():
        person.types(beginning, TAB)
        person.sees(rest)
    person.types("")
    person.sees("Usage: cs system standby")
    assert person.leaves() == 0


def test_ctrl_c_gives_up_a_choice_and_ctrl_d_the_shell(person: Person) -> None:
    person.does("system standby --yes")
    person.sees("is STANDBY")
    person.does("config execmode setup")
    person.sees("Weight Streaming")
    person.types(CTRL_C, "")
    person.sees("cs: error: interrupted")
    person.does("config execmode show")
    person.sees("PIPELINED")
    person.sees("cs>")
    person.types(CTRL_D, "")
    assert person._terminal.exit_code() == 0
    assert person._terminal.is_cooked


def test_lines_are_remembered(state: str) -> None:
    for _ in range(2):
        with terminal(*CS, environment=environment(state)) as opened:
            person = Person(opened)
            person.does("software show")
            person.sees("numpy")
            assert person.leaves() == 0
    lines = (Path(state) / "cs_history").read_text().splitlines()
    assert [line for line in lines if line.startswith("+")] == ["+software show", "+exit"] * 2


def test_a_shell_whose_history_cannot_be_kept_works(tmp_path: Path) -> None:
    nowhere = tmp_path / "a file, no folder"
    nowhere.touch()
    with terminal(*CS, environment=environment(str(nowhere))) as opened:
        person = Person(opened)
        person.does("software show")
        person.sees("numpy")
        person.does("session list")
        person.sees("set CSRUN_STATE_DIR to a writable folder")
        assert person.leaves() == 0


def test_a_line_that_cannot_be_kept_is_done() -> None:
    LineHistory("/dev/full").append_string("software show")


def test_a_terminal_without_abilities_gets_lines(state: str) -> None:
    with terminal(*CS, environment=environment(state, TERM="dumb")) as opened:
        person = Person(opened)
        person.does("system standby --yes")
        person.does("config execmode setup")
        person.sees("[PIPELINED, WEIGHT_STREAMING] ")
        person.types("weight_streaming", "\n")
        person.sees("✔ Weight Streaming")
        person.does("telemetry")
        person.sees("Power     : STANDBY")
        assert person.leaves() == 0


def test_lines_that_are_pasted_are_done_up_to_the_first_that_fails(person: Person) -> None:
    person.sees("cs>")
    lines = "system standby --yes\r\nconfig execmode show\nsystem standby\nsystem activate\n"
    person.types(f"\x1b[200~{lines}\x1b[201~")
    person.sees("cs2-01 is STANDBY")
    person.sees("Configured Execution Mode : PIPELINED\n")
    person.sees("cs: error: 'system standby' is not possible while the system is STANDBY")
    person.does("system status")
    person.sees("Power        : STANDBY\n")
    assert person.leaves() == 0


def test_telemetry_is_live_until_ctrl_c(person: Person) -> None:
    person.does("telemetry")
    for _ in range(3):
        person.sees("Power     : ACTIVE")
    person.types(CTRL_C, "")
    assert person.leaves() == 0
