"""Name of a job."""

import pytest

from csrun.jobs.request import JobOptions, JobRequest

NAMES = [
    ("python-ws run.py --mode train", "run.py"),
    ("python ../models/gpt/run.py", "run.py"),
    ("/usr/bin/python3.11 -u run.py", "run.py"),
    ("python-ws -m my.package.train -p x.yaml", "my.package.train"),
    ("python -c print(1) word", "python"),
    ("python", "python"),
    ("/bin/sh run.sh", "sh"),
]


@pytest.mark.parametrize(("command", "name"), NAMES)
def test_a_job_has_the_name_of_its_script(command: str, name: str) -> None:
    assert JobRequest(tuple(command.split())).name == name


def test_or_the_one_that_was_asked_for() -> None:
    assert JobRequest(("python", "run.py"), options=JobOptions("digits")).name == "digits"
