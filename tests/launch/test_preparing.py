"""What a command's words say about its run."""

import pytest

from csrun.launch.command import is_preparing, prepared

RUN = ("python-ws", "run.py")
COMMANDS = [
    (("--compile_only",), ()),
    (("--validate-only", "--params", "a b.yaml"), ("--params", "a b.yaml")),
    (("--mode", "train", "--compile_only"), ("--mode", "train")),
    (("--mode=compile_only", "-o", "x"), ("--mode=train", "-o", "x")),
    (("-m", "validate_only"), ("-m", "train")),
    (("--compile_only", "-m", "validate_only"), ("-m", "train")),
    (("-m", "package.run", "--mode", "compile_only"), ("-m", "package.run", "--mode", "train")),
]


@pytest.mark.parametrize(("words", "expected"), COMMANDS)
def test_a_compiling_command_is_known_and_so_is_the_training_it_prepares(
    words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert is_preparing((*RUN, *words))
    assert prepared((*RUN, *words)) == (*RUN, *expected)


@pytest.mark.parametrize("words", [(), ("--mode", "train"), ("-o", "compile_only")])
def test_a_training_stays_as_it_is(words: tuple[str, ...]) -> None:
    assert not is_preparing((*RUN, *words))
    assert prepared((*RUN, *words)) == (*RUN, *words)
