"""Which system a run gets by the time that its program is compiled."""

import msgspec
import pytest

from csrun.base.mode import ExecutionMode
from csrun.estimator.place import Target, on_freest
from csrun.site import load
from csrun.system import acquire

MODE = ExecutionMode.PIPELINED
LOCAL = load("local")
FIRST = LOCAL.systems[0]
SECOND = msgspec.structs.replace(LOCAL.systems[1], mode=MODE)
SMALLER = msgspec.structs.replace(SECOND, fabric_width=10)
pytestmark = pytest.mark.usefixtures("state")


def test_a_system_that_became_busy_is_left_for_one_like_it() -> None:
    site = msgspec.structs.replace(LOCAL, systems=(FIRST, SECOND))
    target = Target(None, site, FIRST, MODE, is_open=True)
    assert on_freest(target) == target
    with acquire(site, FIRST, MODE, "job 1"):
        assert on_freest(target).system == SECOND
        named = Target(None, site, FIRST, MODE)
        assert on_freest(named) == named
        with acquire(site, SECOND, MODE, "job 2"):
            assert on_freest(target) == target


def test_another_kind_of_system_is_no_choice() -> None:
    site = msgspec.structs.replace(LOCAL, systems=(FIRST, SMALLER))
    target = Target(None, site, FIRST, MODE, is_open=True)
    with acquire(site, FIRST, MODE, "job 1"):
        assert on_freest(target) == target
