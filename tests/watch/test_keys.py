"""Keys of the live screen."""

from datetime import UTC, datetime

import pytest

from csrun.watch.keys import Key, ScreenState, keys_in
from csrun.watch.site_snapshot import JobLine

NOW = datetime.now(UTC)


def job(job_id: int, *, ended: bool = False) -> JobLine:
    end = NOW if ended else None
    return JobLine(job_id, "run.py", "ada", "RUNNING", 1, "", NOW, NOW, end, 1.0, "")


JOBS = (job(4), job(7), job(2, ended=True))


def after(keys: bytes, selected: int | None = 7) -> ScreenState:
    state = ScreenState(selected)
    for key in keys_in(keys):
        state = state.pressed(key, JOBS)
    return state


def test_what_terminals_send() -> None:
    sent = b"\x1b[A\x1bOBjklcyq\x1b[C?"
    assert keys_in(sent)[:8] == [
        Key.UP, Key.DOWN, Key.DOWN, Key.UP, Key.LOG, Key.CANCEL, Key.YES, Key.QUIT
    ]  # fmt: skip
    assert keys_in(b"\xff\x00") == [Key.OTHER, Key.OTHER]


@pytest.mark.parametrize(
    ("keys", "selected"), [(b"j", 2), (b"k", 4), (b"kkk", 4), (b"jjj", 2), (b"", 7)]
)
def test_arrows_choose_a_job(keys: bytes, selected: int) -> None:
    assert after(keys).selected == selected


def test_a_job_that_is_gone_gives_way_to_the_first() -> None:
    assert after(b"j", selected=99).selected == 4
    assert ScreenState(None).pressed(Key.UP, ()).selected is None


def test_the_log_is_shown_and_hidden() -> None:
    assert after(b"l").view.shows_log
    assert not after(b"ll").view.shows_log


def test_a_job_is_cancelled_after_a_question() -> None:
    asking = after(b"c")
    assert asking.view.asks
    assert "cancel job 7?" in asking.view.footer
    assert asking.cancels is None
    assert after(b"cy").cancels == 7


@pytest.mark.parametrize("answer", [b"n", b"q", b"c", b"\x1b[A", b"\r"])
def test_any_other_answer_is_a_no(answer: bytes) -> None:
    state = after(b"c" + answer)
    assert (state.cancels, state.asks, state.is_over) == (None, False, False)


def test_an_ended_job_is_not_cancelled() -> None:
    state = after(b"cy", selected=2)
    assert state.cancels is None
    assert "only a job that waits or runs" in after(b"c", selected=2).view.footer


def test_quitting() -> None:
    assert after(b"q").is_over
