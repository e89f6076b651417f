"""Properties of a run derived from the words of its command."""

import os
from pathlib import Path

import pytest

from csrun.base.errors import UsageError
from csrun.context import Preparation
from csrun.launch.command_checks import check_command
from csrun.launch.user_command import UserCommand

RUN = ("python-ws", "run.py")
COMMANDS = [
    (("--compile_only",), ()),
    (("--validate-only", "--params", "a b.yaml"), ("--params", "a b.yaml")),
    (("--mode", "train", "--compile_only"), ("--mode", "train")),
    (("--mode=compile_only", "-o", "x"), ("--mode=train", "-o", "x")),
    (("-m", "validate_only"), ("-m", "train")),
    (("-mcompile_only",), ("-mtrain",)),
    (("--compile_only", "-m", "validate_only"), ("-m", "train")),
    (("-m", "package.run", "--mode", "compile_only"), ("-m", "package.run", "--mode", "train")),
]


@pytest.mark.parametrize(("words", "expected"), COMMANDS)
def test_a_compiling_command_is_known_and_so_is_the_training_it_prepares(
    words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert UserCommand((*RUN, *words)).preparation is not None
    assert UserCommand((*RUN, *words)).prepared_run().argv == (*RUN, *expected)


@pytest.mark.parametrize("words", [(), ("--mode", "train"), ("-o", "compile_only")])
def test_a_training_stays_as_it_is(words: tuple[str, ...]) -> None:
    assert UserCommand((*RUN, *words)).preparation is None
    assert UserCommand((*RUN, *words)).prepared_run().argv == (*RUN, *words)


def test_what_is_asked_for_is_told_apart() -> None:
    compiles = [(*RUN, *words) for words in (("--compile-only",), ("-m", "compile_only"))]
    validates = [(*RUN, *words) for words in (("--validate_only",), ("--mode=validate_only",))]
    assert {UserCommand(words).preparation for words in compiles} == {Preparation.COMPILE_ONLY}
    assert {UserCommand(words).preparation for words in validates} == {Preparation.VALIDATE_ONLY}
    assert UserCommand((*RUN, "--mode", "train")).preparation is None


def test_a_script_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "run.py"
    script.touch()
    check_command(UserCommand(("python-ws", str(script))))
    monkeypatch.setattr(os, "access", lambda path, how: False)  # root may read everything
    with pytest.raises(UsageError, match=r"run\.py: cannot be read: Permission denied"):
        check_command(UserCommand(("python-ws", str(script))))
