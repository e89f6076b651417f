"""Processes of an array: concurrency, output lines, exits."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from time import sleep

import pytest
from support.jobs import until

from csrun.launch.array.array_run import ArrayRun, ElementLauncher


def run(launchers: list[Callable[[], int]], at_once: int = 9) -> tuple[int, dict[int, int]]:
    ends: dict[int, int] = {}
    elements = [ElementLauncher(at + 1, launcher) for at, launcher in enumerate(launchers)]
    return ArrayRun(elements, at_once, ends.__setitem__).run(), ends


def test_the_highest_exit_code_counts_and_all_run() -> None:
    assert run([lambda: 0, lambda: 3, lambda: 2, lambda: 0]) == (3, {1: 0, 2: 3, 3: 2, 4: 0})
    assert run([]) == (0, {})


def test_lines_have_the_index_and_stay_whole(capfd: pytest.CaptureFixture[str]) -> None:
    def say() -> int:
        for text in ("a", "b\n", "c"):
            os.write(1, text.encode())
            sleep(0.01)
        os.write(2, b"\x1b[31m why\n")
        return 0

    run([say, say])
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["1: ab", "1: c", "2: ab", "2: c"]
    assert sorted(err.splitlines()) == [r"1: \x1b[31m why", r"2: \x1b[31m why"]


def test_no_more_run_than_asked(tmp_path: Path) -> None:
    def work() -> int:
        mine = tmp_path / str(os.getpid())
        mine.touch()
        sleep(0.05)
        seen = len(list(tmp_path.iterdir()))
        mine.unlink()
        return seen

    code, ends = run([work] * 5, at_once=2)
    assert code <= 2
    assert len(ends) == 5


def test_a_signal_ends_all_that_run_and_starts_no_other(tmp_path: Path) -> None:
    def wait() -> int:
        try:
            (tmp_path / str(os.getpid())).touch()
            sleep(600)
        except KeyboardInterrupt:
            return 130
        return 0

    def interrupt() -> None:
        until(lambda: len(list(tmp_path.iterdir())) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    code, ends = run([wait] * 3, at_once=2)
    thread.join()
    assert code == 130
    assert ends == {1: 130, 2: 130, 3: 130}
    assert len(list(tmp_path.iterdir())) == 2


def test_a_killed_element_and_a_bug_stop_no_other() -> None:
    def die() -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def fail() -> int:
        raise ValueError("a bug")

    assert run([die, fail, lambda: 0], at_once=1) == (137, {1: 137, 2: 1, 3: 0})
