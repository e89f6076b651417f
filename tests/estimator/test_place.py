"""Which system a run gets by the time that its program is compiled."""

import logging
from contextlib import ExitStack

import msgspec
import pytest

from csrun.base.mode import ExecutionMode
from csrun.estimator import place
from csrun.estimator.place import Target, on_freest
from csrun.site import System, load
from csrun.system import acquire

MODE = ExecutionMode.PIPELINED
LOCAL = load("local")
FIRST = LOCAL.systems[0]
SECOND = msgspec.structs.replace(LOCAL.systems[1], mode=MODE)
SMALLER = msgspec.structs.replace(SECOND, fabric_width=10)
pytestmark = pytest.mark.usefixtures("state")


def test_a_system_that_became_busy_is_left_for_one_like_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    site = msgspec.structs.replace(LOCAL, systems=(FIRST, SECOND))
    target = Target(None, site, FIRST, MODE, is_open=True)
    assert on_freest(target) == target
    with acquire(site, FIRST, MODE, "job 1"):
        assert on_freest(target).system == SECOND
        named = Target(None, site, FIRST, MODE)
        assert on_freest(named) == named
        with acquire(site, SECOND, MODE, "job 2"):
            assert on_freest(target) == target
    (said,) = caplog.messages
    assert said.endswith("using cs2-02 (127.0.0.2), the first free system in PIPELINED mode")


@pytest.mark.parametrize(
    ("systems", "held", "why"),
    [
        ((FIRST,), (FIRST,), "the only system in PIPELINED mode"),
        ((FIRST, SECOND), (FIRST,), "the system in PIPELINED mode with the fewest jobs"),
        ((FIRST, SECOND), (), "the first free system in PIPELINED mode"),
    ],
)
def test_why_a_system_was_taken_is_said(
    systems: tuple[System, ...], held: tuple[System, ...], why: str
) -> None:
    site = msgspec.structs.replace(LOCAL, systems=systems)
    with ExitStack() as leases:
        for each in held:
            leases.enter_context(acquire(site, each, MODE, "job 1"))
        assert place._why_taken(site, FIRST, MODE) == why


def test_another_kind_of_system_is_no_choice() -> None:
    site = msgspec.structs.replace(LOCAL, systems=(FIRST, SMALLER))
    target = Target(None, site, FIRST, MODE, is_open=True)
    with acquire(site, FIRST, MODE, "job 1"):
        assert on_freest(target) == target
