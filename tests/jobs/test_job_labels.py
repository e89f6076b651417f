"""Labels of jobs: syntax, changes, conditions, and the file next to a record."""

from pathlib import Path

import pytest

from csrun.base.errors import UsageError
from csrun.jobs import job_labels, register
from csrun.jobs.registered_job import registered
from csrun.jobs.request import JobOptions, type_of
from csrun.site import load

SITE = load("local")


def test_labels_of_a_command_line() -> None:
    assert job_labels.parse(["a=1,b=x/y", "c="]) == {"a": "1", "b": "x/y", "c": ""}
    assert job_labels.text({"b": "2", "a": "1"}) == "a=1,b=2"
    assert job_labels.parse([]) == {}


@pytest.mark.parametrize("word", ["a", "=1", "a b=1", "a=\x1b[31m", "é=1", "a=" + "x" * 64, "a==1"])
def test_another_form_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="--job-labels: must be key=value"):
        job_labels.parse([word])


def test_changes() -> None:
    assert job_labels.changed({"a": "1", "b": "2"}, ["a=3", "b-,c=4"]) == {"a": "3", "c": "4"}
    with pytest.raises(UsageError, match="no label 'd' to remove"):
        job_labels.changed({"a": "1"}, ["d-"])
    with pytest.raises(UsageError, match="label: must be key=value"):
        job_labels.changed({}, ["d"])


@pytest.mark.parametrize(
    ("condition", "holds"),
    [("a", True), ("a=1", True), ("a=2", False), ("a!=2", True), ("b", False), ("b!=1", True),
     ("a=1,b=1", False), ("", True)],
)  # fmt: skip
def test_conditions(condition: str, holds: bool) -> None:
    assert job_labels.matches({"a": "1"}, [condition]) is holds


def test_a_condition_of_another_form() -> None:
    with pytest.raises(UsageError, match="-l: must be key=value, key!=value or key"):
        job_labels.matches({}, ["a>1"])


@pytest.mark.usefixtures("state")
def test_a_living_job_is_labelled_and_its_launcher_writes_on() -> None:
    with registered(SITE, ("true",), JobOptions(labels={"a": "1"}), 1, 1) as job:
        number = job.job_id
        assert register.read(SITE, number).labels == {"a": "1"}
        assert register.label(SITE, number, ["b=2"]) == {"a": "1", "b": "2"}
        job.start(("node1",))
        assert register.read(SITE, number).labels == {"a": "1", "b": "2"}
        assert register.label(SITE, number, ["a-", "b-"]) == {}
    assert [record.labels for record in register.read_all(SITE)] == [{}]
    register.remove(SITE, number)
    with pytest.raises(UsageError, match="no such job"):
        register.label(SITE, number, ["a=1"])


def test_a_damaged_file_is_as_none(tmp_path: Path) -> None:
    record = tmp_path / "7.json"
    assert job_labels.stored_labels(record) is None
    job_labels.store(record, {"a": "1"})
    assert job_labels.stored_labels(record) == {"a": "1"}
    record.with_suffix(job_labels.SUFFIX).write_text("{}")
    assert job_labels.stored_labels(record) is None


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (("python-ws", "run.py", "--mode", "train"), "execute"),
        (("python-ws", "run.py", "--compile_only"), "compile"),
        (("python", "run.py", "--mode=validate_only"), "compile"),
        (("python", "run.py", "--mode", "compile_only"), "compile"),
        ((), ""),
    ],
)
def test_the_type_of_a_command(command: tuple[str, ...], kind: str) -> None:
    assert type_of(command) == kind
