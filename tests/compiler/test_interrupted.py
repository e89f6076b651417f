"""A compile that is interrupted before any of its steps leaves no partial directory."""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.programs import Network, options_of

from csrun.compiler import compile_directory, compile_model

#: CPython's audit events of the calls that change what is on the disk, or open it to do so.
STEPS = ("open", "os.mkdir", "os.rename", "os.rmdir", "os.remove", "os.chmod")
ENDS = {signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 3}
Files = Mapping[str, bytes]


def files_in(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete compile directory."""
    root = tmp_path_factory.mktemp("compiled")
    return compile_model(Network().trace(), root, options_of()).executable.directory


def nothing(target: Path) -> None:
    """No compile directory: the first compile of a model."""


def a_damaged_one(target: Path) -> None:
    """A damaged compile directory left by another version."""
    target.mkdir(parents=True)
    (target / "plan.json").write_text("{}")
    (target / "program.py").touch()
    (target / "zz_other").touch()


@pytest.mark.parametrize(
    ("how", "lies_there"),
    [
        pytest.param(signal.SIGKILL, a_damaged_one, id="killed, a damaged one"),
        pytest.param(signal.SIGINT, nothing, id="interrupted, nothing"),
        pytest.param(signal.SIGKILL, nothing, id="killed, nothing", marks=pytest.mark.slow),
        pytest.param(
            signal.SIGINT, a_damaged_one, id="interrupted, a damaged one", marks=pytest.mark.slow
        ),
    ],
)
def test_what_lies_there_later_is_whole(
    tmp_path: Path, compiled: Path, how: signal.Signals, lies_there: Callable[[Path], None]
) -> None:
    files = files_in(compiled)
    step, ended, found_whole = 0, ENDS[how], False
    while ended == ENDS[how]:
        step += 1
        target = tmp_path / str(step) / compiled.name
        lies_there(target)
        ended = interrupted(target, files, how, step)
        if compile_directory.read(target) is not None:
            found_whole = True
            assert files_in(target) == files
        else:
            compile_directory.write(target, texts(files))  # as the next run does
            assert files_in(target) == files
            assert list(target.parent.iterdir()) == [target]
    assert ended == 0
    assert found_whole
    assert step > len(files)  # each of them was one of the steps


def interrupted(target: Path, files: Files, how: signal.Signals, step: int) -> int:
    """Exit code of a process that receives a signal before its nth step of writing a compile."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        signal_before(step, how, target.parent)
        compile_directory.write(target, texts(files))
        status = 0
    except KeyboardInterrupt:
        status = ENDS[signal.SIGINT]
    finally:
        os._exit(status)


def signal_before(step: int, how: signal.Signals, root: Path) -> None:
    """Install an audit hook, which cannot be removed: only for a process that ends soon."""
    left = step

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        path = str(arguments[0]) if event in STEPS else "/"
        if path.startswith(str(root)) or not path.startswith("/"):  # relative to an open folder
            left -= 1
            if left == 0:
                os.kill(os.getpid(), how)

    sys.addaudithook(hook)


def texts(files: Files) -> dict[str, str]:
    return {name: content.decode() for name, content in files.items()}
