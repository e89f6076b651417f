"""Time ledger of a job: a stopped process appears in its own row."""

import json
import os
import re
import signal
import time
from collections import defaultdict
from pathlib import Path

import pytest
from support.fc_mnist import MANY_STEPS, FcMnist, scalars
from support.jobs import STALL_S, until

from csrun.records.ledger import Row

ONE_STREAMER = ("--total-nodes", "3", "--tasks-per-node", "1", "--cpus-per-task", "1")
STOP_S = 2.0
LEAST = 0.9  # of a stop, in its row: the order that runs goes on beside a chief that stands still
MOST_STOPS = 8
ROWS = {
    "rank-00002": ("input",),  # the streamer
    "rank-00001": ("weights", "first_group"),  # MemoryX
    "rank-00000": ("chief",),
    "wafer-cs2-02": ("compute",),
}


def intervals(model_dir: Path) -> list[dict[str, float]]:
    """The seconds of each row between two log lines, as the events have them."""
    found: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for path in model_dir.glob("events.out.tfevents.*"):
        for step, values in scalars(path):
            for tag, value in values.items():
                if tag.startswith("seconds/"):
                    found[step][tag.removeprefix("seconds/")] = value
    whole = {row.title for row in Row} - {Row.OTHER.title}
    return [rows for rows in found.values() if rows.keys() == whole]


def stand_still(process: int) -> float:
    """Stop a process for a while; how long that was."""
    began = time.monotonic()
    os.kill(process, signal.SIGSTOP)
    try:
        time.sleep(STOP_S)
    finally:
        os.kill(process, signal.SIGCONT)
    return time.monotonic() - began


def the_longest(model_dir: Path, seen: int, least_s: float) -> dict[str, float]:
    """The first interval after so many that takes so long."""
    found: list[dict[str, float]] = []

    def checkpoint_exists() -> bool:
        found[:] = [one for one in intervals(model_dir)[seen:] if sum(one.values()) >= least_s]
        return bool(found)

    until(checkpoint_exists)
    return found[0]


def shows(model_dir: Path, process: int, rows: tuple[str, ...]) -> bool:
    """Stop a process; whether that time is in these rows, and in no other.

    A wafer that is stopped just when it has told the chief of its steps is the chief's wait.
    """
    seen = len(intervals(model_dir))
    stopped_s = stand_still(process)
    found = the_longest(model_dir, seen, LEAST * stopped_s)
    own_s = sum(found[row] for row in rows)
    return own_s >= LEAST * stopped_s and sum(found.values()) - own_s < stopped_s / 2


@pytest.mark.alone
def test_a_process_that_stands_still_shows_in_its_row(place: FcMnist) -> None:
    place.configure(
        model__hidden_sizes=[300, 300],
        runconfig__max_steps=MANY_STEPS,
        runconfig__log_steps=20,
        runconfig__save_checkpoints_steps=MANY_STEPS,
    )
    with place.start_wse(layout=ONE_STREAMER) as launcher:
        until(lambda: len(intervals(place.model_dir)) > 2)
        processes = place.processes(launcher.pid)
        for name, rows in ROWS.items():
            shown = [shows(place.model_dir, processes[name], rows)]
            while not shown[-1] and len(shown) < MOST_STOPS:
                shown.append(shows(place.model_dir, processes[name], rows))
            assert shown[-1], f"{name}: {len(shown)} stops, none in {rows}"
        launcher.send_signal(signal.SIGTERM)
        launcher.communicate(timeout=STALL_S)


@pytest.mark.alone
def test_the_record_and_the_last_lines_have_the_rows_and_they_add_up(place: FcMnist) -> None:
    place.configure(runconfig__max_steps=300)
    done = place.wse(layout=ONE_STREAMER)
    assert done.returncode == 0, done.stderr
    record = json.loads((place.model_dir / "performance" / "performance.json").read_text())
    seconds = {row["row"]: row["seconds"] for row in record["ledger"]}
    total_s = record["total_time"]
    assert abs(sum(seconds.values()) - total_s) < 0.03 * total_s
    assert abs(seconds["other"]) <= 0.03 * total_s
    assert min(seconds["compute"], seconds["checkpoint"]) > 0
    lines = (done.stdout + done.stderr).splitlines()
    (head,) = (number for number, line in enumerate(lines) if "Training time by cause (" in line)
    assert all(re.search(r": \d+\.\d s, ", line) for line in lines[head + 1 : head + 5])
    assert "Training finished with" in lines[head + 5]
