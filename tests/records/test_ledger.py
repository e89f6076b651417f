"""The ledger against sums by hand, with a fake clock."""

from collections.abc import Callable, Iterator

import pytest

from csrun.records.ledger import Ledger, Row, StepTimes, lines


def clock(*times: float) -> Callable[[], float]:
    ticks: Iterator[float] = iter(times)
    return lambda: next(ticks)


def seconds_of(ledger: Ledger) -> dict[str, float]:
    return {row.row: row.seconds for row in ledger.rows() if row.seconds}


def test_an_order_is_cut_by_what_the_wafer_says_and_the_rest_is_the_chiefs() -> None:
    ledger = Ledger(clock(0.0, 1.0, 11.0, 12.0, 15.0, 16.0))
    ledger.mark(Row.CHECKPOINT)  # 0 to 1
    ledger.mark_steps(StepTimes(9.5, 2.0, 1.0, 0.5, 0.25))  # 1 to 11
    ledger.mark(Row.CHIEF)  # 11 to 12
    ledger.mark(Row.SCRIPT)  # 12 to 15
    assert seconds_of(ledger) == {
        "checkpoint": 1.25, "compute": 5.75, "input": 2.0, "weights": 1.0, "first_group": 0.5,
        "chief": 1.5, "script": 3.0, "other": 1.0,
    }  # fmt: skip


def test_the_rows_add_up_and_each_wait_says_what_it_costs() -> None:
    ledger = Ledger(clock(0.0, 8.0, 10.0))
    ledger.mark_steps(StepTimes(8.0, 2.0, 0.0, 0.0))
    rows = {row.row: row for row in ledger.rows()}
    assert sum(row.seconds for row in rows.values()) == pytest.approx(10.0)
    assert sum(row.share for row in rows.values()) == pytest.approx(1.0)
    assert rows["input"].at_most == pytest.approx(10 / 8)  # 10 seconds become 8
    assert rows["compute"].at_most is None
    assert rows["other"].share == pytest.approx(0.2)


def test_a_wafer_that_says_more_than_the_order_took_adds_no_time() -> None:
    ledger = Ledger(clock(0.0, 4.0, 4.0))
    ledger.mark_steps(StepTimes(5.0, 3.0, 3.0, 2.0))
    found = seconds_of(ledger)
    assert sum(found.values()) == pytest.approx(4.0)
    assert found["input"] == pytest.approx(1.5)  # 3 of 8, of 4 seconds
    assert min(found.values()) >= 0


def test_a_report_is_of_the_time_since_the_last_one() -> None:
    ledger = Ledger(clock(0.0, 1.0, 3.0, 4.0))
    ledger.mark(Row.CHIEF)
    assert ledger.since_report()["chief"] == 1.0
    ledger.mark(Row.CHIEF)
    ledger.mark(Row.CHECKPOINT)
    found = ledger.since_report()
    assert (found["chief"], found["checkpoint"], found["compute"]) == (2.0, 1.0, 0.0)
    assert "other" not in found


def test_five_lines_name_the_largest_rows_first() -> None:
    ledger = Ledger(clock(0.0, 20.0, 21.0, 24.0, 24.0))
    ledger.mark_steps(StepTimes(20.0, 5.0, 0.0, 1.0))
    ledger.mark(Row.CHIEF)
    ledger.mark(Row.CHECKPOINT)
    assert lines(ledger.rows()) == [
        "Training time by cause (24.0 s):",
        "  compute (wafer): 14.0 s, 58.3%",
        "  waiting for input (streamers): 5.0 s, 20.8%; without this wait: up to 1.26x faster",
        "  checkpoints (chief): 3.0 s, 12.5%; without this wait: up to 1.14x faster",
        "  first group's update (MemoryX): 1.0 s, 4.2%; without this wait: up to 1.04x faster",
    ]


def test_no_time_has_gone_nowhere() -> None:
    assert lines(Ledger(clock(5.0, 5.0)).rows())[0] == "Training time by cause (0.0 s):"


def test_the_largest_wait_is_no_work() -> None:
    ledger = Ledger(clock(0.0, 8.0, 10.0))
    ledger.mark_steps(StepTimes(8.0, 2.0, 1.0, 0.0))
    wait = ledger.largest_wait()
    assert (wait.row, wait.share) == ("input", 2 / 10)
