"""Log messages of a run that waits for its input."""

from dataclasses import replace

import pytest

from csrun.runtime.input_log import Feeding, InputLog
from csrun.runtime.wire.messages import StepsDone, StreamerUse

STAGES = ("read", "map load")


def stage(streamer: int, number: int) -> str | None:
    return STAGES[number] if number >= 0 else None


def feeding(count: int) -> Feeding:
    names = tuple(f"streamer {rank}" for rank in range(2, 2 + count))
    return Feeding(names, stage, lambda streamers: f"--tasks-per-node {streamers}")


def order(wait_s: float, produce_s: float, streamer: int = 0, number: int = 1) -> StepsDone:
    """Order of ten steps in a second, with all batches from one streamer."""
    use = StreamerUse(streamer, 10, wait_s, produce_s, number, produce_s / 20)
    return StepsDone(10, 1280, 1.0, (use,))


@pytest.mark.parametrize(("minutes", "lines"), [(0.1, 0), (0.5, 1), (1.5, 2), (5.5, 6)])
def test_slow_streamers_are_told_of_once_a_minute_at_most(caplog, minutes, lines):
    """After the first ten seconds, and then every sixty."""
    input_log = InputLog(feeding(1))
    for _ in range(int(minutes * 60)):
        input_log.add(order(0.5, 1.0))
    assert len(caplog.messages) == lines
    input_log.finish()
    assert len(caplog.messages) == lines + 1


def test_the_line_has_the_numbers_and_the_remedy(caplog):
    """Ten steps compute in 0.2 s, which needs 50 batches/s; the streamer makes ten."""
    input_log = InputLog(feeding(1))
    for _ in range(2):
        input_log.add(order(0.8, 1.0))
    record = input_log.finish()
    (line,) = caplog.messages
    assert line == (
        "Input bound: the steps waited 80% of their time for batches: streamer 2 delivered 10 "
        "batches/s, the wafer asked for 50: its stage 'map load' takes 50 ms per batch; 6 "
        "streamers "
        "are needed (--tasks-per-node 6); see cs_input_analyzer"
    )
    assert record.verdict == "bound"
    assert record.wait_share == pytest.approx(0.8)
    assert record.streamers_needed == 6
    assert record.slowest_stage == "map load"


@pytest.mark.parametrize("count", [0, 1])
def test_more_streamers_of_a_stream_that_each_reads_whole_are_not_advised(caplog, count):
    input_log = InputLog(replace(feeding(count), replayed=True))
    for _ in range(2):
        input_log.add(order(0.8, 1.0))
    assert input_log.finish().streamers_needed is None
    assert "; more streamers do not help because each makes all batches: " in caplog.messages[0]
    assert "--tasks-per-node" not in caplog.messages[0]


def test_a_stage_that_nobody_knows_is_not_named(caplog):
    input_log = InputLog(feeding(1))
    for _ in range(2):
        input_log.add(order(0.8, 1.0, number=-1))
    assert input_log.finish().slowest_stage is None
    assert ": a batch takes 100 ms to make; 6 streamers" in caplog.messages[0]


def test_batches_that_come_late_though_they_are_made_quickly(caplog):
    input_log = InputLog(feeding(1))
    for _ in range(20):
        input_log.add(order(0.1, 0.1))
    input_log.finish()
    assert caplog.messages[-1].startswith("Input moderate: the steps waited 10% of their time")
    assert "the cause is uneven batch times" in caplog.messages[-1]


def test_less_than_a_second_is_not_worth_a_word(caplog):
    input_log = InputLog(feeding(1))
    input_log.add(order(0.9, 1.0))
    assert input_log.finish().verdict == "bound"
    assert not caplog.messages


def test_one_process_hears_of_it_at_the_end_alone(caplog):
    input_log = InputLog(feeding(0))
    for _ in range(100):
        input_log.add(order(0.5, 0.5))
    assert not caplog.messages
    input_log.finish()
    assert "2 streamers in a csrun_wse run would overlap this with the steps" in caplog.messages[0]


def test_hundreds_of_streamers_are_not_advised(caplog):
    input_log = InputLog(feeding(0))
    for _ in range(2):
        input_log.add(order(0.99, 0.99))
    input_log.finish()
    assert "a step takes only 1 ms: use a larger batch or cheaper samples" in caplog.text


def test_a_run_without_a_step_has_a_record(caplog):
    assert InputLog(feeding(3)).finish().verdict == "not bound"


def test_the_streamer_of_the_latest_warning_is_named_until_a_time_without_one():
    input_log = InputLog(feeding(3))
    assert input_log.straggler == ""
    for streamer, produce_s in ((0, 0.1), (1, 0.1), (2, 1.0)) * 4:
        input_log.add(order(0.5, produce_s, streamer))
    assert input_log.straggler == "streamer 4"
    for streamer in (0, 1, 2) * 30:
        input_log.add(order(0.0, 0.1, streamer))
    assert input_log.straggler == ""
