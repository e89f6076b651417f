"""Labels of jobs: `key=value` pairs by which users find them.

The labels given at the launch are in the job's record. Later ones are in a file next to it, since
only its launcher writes the record of a living job.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from csrun.base import stored
from csrun.base.errors import CsrunError, UsageError

SUFFIX = ".labels"
MOST_CHARACTERS = 63
FORM = "key=value, of letters, digits and ./_- and at most 63 characters each"
_KEY = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}"
_VALUE = r"[A-Za-z0-9._/+:@-]{0,63}"
_LABEL = re.compile(rf"({_KEY})=({_VALUE})", re.ASCII)
_REMOVAL = re.compile(rf"({_KEY})-", re.ASCII)
_CONDITION = re.compile(rf"({_KEY})(?:(!?=)({_VALUE}))?", re.ASCII)

Labels = dict[str, str]


class LabelFile(msgspec.Struct, frozen=True):
    """`<job>.labels`: all labels of a job."""

    labels: Labels


def split(words: Iterable[str]) -> list[str]:
    """Split arguments such as `a=1,b=2` into single labels."""
    return [word for text in words for word in text.split(",") if word]


def parse(words: Iterable[str], option: str = "--job-labels") -> Labels:
    """Parse the labels of a command line.

    Raises: UsageError for an argument of another form
    """
    found = {}
    for word in split(words):
        if (label := _LABEL.fullmatch(word)) is None:
            raise UsageError(f"{option}: must be {FORM}, got {word!r}")
        found[label[1]] = label[2]
    return found


def changed(labels: Mapping[str, str], words: Iterable[str]) -> Labels:
    """Return the labels after changes: `key=value` sets one, `key-` removes one.

    Raises: UsageError for an argument of another form, or for a label to remove that does not exist
    """
    found = dict(labels)
    for word in split(words):
        if (removal := _REMOVAL.fullmatch(word)) is None:
            found |= parse((word,), "label")
        elif found.pop(removal[1], None) is None:
            raise UsageError(f"label: the job has no label {removal[1]!r} to remove")
    return found


def matches(labels: Mapping[str, str], conditions: Iterable[str]) -> bool:
    """Return whether all conditions hold: `key=value`, `key!=value` or `key`.

    Raises: UsageError for an argument of another form
    """
    return all(_holds(labels, word) for word in split(conditions))


def _holds(labels: Mapping[str, str], word: str) -> bool:
    if (found := _CONDITION.fullmatch(word)) is None:
        raise UsageError(f"-l: must be key=value, key!=value or key, got {word!r}")
    key, relation, value = found.groups()
    if relation is None:
        return key in labels
    return (labels.get(key) == value) is (relation == "=")


def text(labels: Mapping[str, str]) -> str:
    """Format labels for tables and command lines."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def stored_labels(record: Path) -> Labels | None:
    """Return the labels in the file next to a record; None if none were set after the launch."""
    path = record.with_suffix(SUFFIX)
    with suppress(FileNotFoundError, CsrunError):
        return stored.read_owned(path, LabelFile, "the labels").value.labels
    return None


def store(record: Path, labels: Labels) -> None:
    """Write the labels of a job next to its record."""
    stored.write(record.with_suffix(SUFFIX), LabelFile(labels), durable=False)
