"""Damaged files: no traceback, no hang, no excessive memory, and no wrong result.

Each case is drawn from its number. One that fails prints how to repeat it:

    CSRUN_DAMAGE=index:17 .venv/bin/pytest -q tests/bad/test_damage.py -k repeated
"""

import logging
import os
import random
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from itertools import chain
from pathlib import Path

import pytest
from support.damage import change_a_value, drawn, is_small_file, replace_by_fifo
from support.read_back import KINDS

from csrun.base.errors import CsrunError

HUNG_S = 60  # no case takes a second, unless the machine is busy
MEMORY_BYTES = 1 << 30
LONGEST_MESSAGE = 5000
QUICK, MANY = 20, 80  # cases of each kind
REPEATED = os.environ.get("CSRUN_DAMAGE", "")


class HungError(BaseException):
    """Raised on a timeout; a BaseException, so that no handler catches it."""


def _hung(*_: object) -> None:
    raise HungError


@contextmanager
def bounded() -> Iterator[None]:
    """Limit time and additional memory; pytest-timeout's alarm is restored afterwards."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, _hung)
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, HUNG_S)
    resource.setrlimit(
        resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, limits[1])
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        taken_s = HUNG_S - signal.setitimer(signal.ITIMER_REAL, 0)[0]
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, max(0.01, left_s - taken_s) if left_s else 0)


class Cases:
    """Cases of one kind, each on a copy of its intact files."""

    def __init__(self, name: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        self._name, self._kind, self._folder = name, KINDS[name], folder
        self._caplog = caplog
        (folder / "whole").mkdir()
        self._kind.make(folder / "whole")
        self._result = self._kind.read(self._copy()) if name != "run" else WHOLE_RUN

    def _copy(self) -> Path:
        copy = self._folder / "case"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._folder / "whole", copy, symlinks=True)
        return copy

    def require(self, number: int) -> None:
        """Raise the case's error, with the command that repeats it."""
        chance = random.Random(f"{self._name}:{number}")
        copy = self._copy()
        said, is_forged = [], False
        for _ in range(chance.choice([1, 1, 1, 2])):
            names = (glob(pattern, root_dir=copy) for pattern in self._kind.damaged)
            there = sorted(copy / name for name in chain.from_iterable(names))
            if whole := list(filter(is_small_file, there)):
                path, damage = chance.choice(whole), drawn(chance)
                if damage is replace_by_fifo and self._kind.may_be_a_pipe:
                    continue  # it is waited for, as it was asked for
                is_forged |= damage is change_a_value and b'"crc32"' in path.read_bytes()
                damage(path, chance)
                said.append(f"{damage.__name__}({path.relative_to(copy)})")
        self._caplog.clear()
        wrong = self._wrong(copy, is_forged)
        if wrong:
            line = f"CSRUN_DAMAGE={self._name}:{number} .venv/bin/pytest -q {__file__} -k repeated"
            pytest.fail(f"{self._name}: {' '.join(said)}: {wrong}; to repeat it:\n{line}")

    def _wrong(self, copy: Path, is_forged: bool) -> str:
        """Error of a case, or ''; values forged with a matching checksum are valid."""
        try:
            with bounded():
                result = self._kind.read(copy)
        except CsrunError as error:
            text = str(error)
            return "" if 0 < len(text) <= LONGEST_MESSAGE else f"a message of {len(text)}"
        except HungError:
            return f"hung for {HUNG_S} s"
        except Exception as error:
            if REPEATED:
                raise
            return f"a traceback: {type(error).__name__}: {str(error)[:300]}"
        warned = [r.getMessage() for r in self._caplog.records if r.levelno >= logging.WARNING]
        is_same = result == self._result or self._kind.is_allowed(result, self._result, warned)
        return "" if is_same or is_forged else f"another result: {str(result)[:300]}"


WHOLE_RUN = {"loss": 0.1, "step": 3.0}


@pytest.fixture
def cases(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch, caplog) -> Cases:
    monkeypatch.setenv("CSRUN_STATE_DIR", str(tmp_path / "state"))
    return Cases(request.param, tmp_path, caplog)


@pytest.mark.parametrize("cases", KINDS, indirect=True)
def test_a_few_damages(cases: Cases) -> None:
    for number in range(QUICK):
        cases.require(number)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cases", KINDS, indirect=True)
def test_many_damages(cases: Cases) -> None:
    for number in range(QUICK, QUICK + MANY):
        cases.require(number)


@pytest.mark.skipif(not REPEATED, reason="CSRUN_DAMAGE=KIND:NUMBER names no case")
@pytest.mark.parametrize("cases", [REPEATED.partition(":")[0]] * bool(REPEATED), indirect=True)
def test_one_that_is_repeated(cases: Cases) -> None:
    cases.require(int(REPEATED.partition(":")[2]))


def test_there_are_many() -> None:
    assert len(KINDS) * (QUICK + MANY) > 2000
