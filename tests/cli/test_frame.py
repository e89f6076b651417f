"""The options of a job, in their long forms and in sbatch's short ones."""

import click
import pytest
from click.testing import CliRunner

from csrun.cli import frame

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
