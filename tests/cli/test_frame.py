"""The options of a job, help texts, and messages about a command line."""

import click
import pytest
from click.testing import CliRunner

from csrun.cli import csctl, csrun, frame

USAGES = [
    (["cancel", "job"], "Missing argument 'ID'; usage: csctl cancel job [OPTIONS] ID"),
    (["label", "3"], "usage: csctl label job [OPTIONS] ID K=V|K-..."),
]
FORMS = [
    ("--job-name", "digits", "--time-limit", "2"),
    ("-J", "digits", "-t", "2"),
    ("-Jdigits", "--time=2:00"),
]


@pytest.mark.parametrize("words", FORMS)
def test_the_forms_of_an_option_are_one(words: tuple[str, ...]) -> None:
    found = []

    @click.command()
    @frame.job_options
    def command(**job: str | None) -> None:
        found.append(frame.job_options_of(**job))

    assert CliRunner().invoke(command, words, catch_exceptions=False).exit_code == 0
    (options,) = found
    assert (options.job_name, options.time_limit_s) == ("digits", 120)


@pytest.mark.parametrize(("words", "message"), USAGES)
def test_a_missing_argument_is_answered_with_the_usage(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert frame.run(csctl.csctl, words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", [csrun.csrun, csctl.csctl, csctl.get, csctl.cancel_group])
def test_a_list_of_commands_is_wrapped_not_cut(command: click.Group) -> None:
    shown = CliRunner().invoke(command, ["--help"]).output
    assert "..." not in shown.partition("Commands:")[2]
    assert all(f"\n  {name}  " in shown for name in command.commands)
