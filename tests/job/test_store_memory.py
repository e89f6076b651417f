"""Memory of processes with a store on disk, from first values to the last checkpoint."""

import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.fc_mnist import FcMnist
from support.jobs import STALL_S

LAYOUT = ("--total-nodes", "3", "--tasks-per-node", "1", "--cpus-per-task", "1")
PLACES = r"#[0-9]+|csrun-store-\w+|memfd:csrun-store"  # the file, and what stays beside it
STORE = re.compile(rf"/(?:{PLACES}) \(deleted\)\n(?:.*\n)*?Pss: +([0-9]+) kB")
UNITS, LAYERS, STEPS = 1024, 12, 6
GROUP = 4 * UNITS * UNITS  # bytes of a layer, about
WEIGHTS = LAYERS * GROUP
BOUND = WEIGHTS + WEIGHTS // 10  # of as much again, and of a window of gradients


def mapped_bytes(processes: dict[str, int]) -> int:
    """What they have of it in memory; a page that n of them have counts 1/n for each.

    Source: proc(5), /proc/pid/smaps
    """
    found = 0
    for pid in processes.values():
        with suppress(OSError):  # it has just ended
            text = Path(f"/proc/{pid}/smaps").read_text()
            found += 1024 * sum(map(int, STORE.findall(text)))
    return found


def sampled(place: FcMnist, launcher: "subprocess.Popen[str]") -> list[int]:
    """What is mapped, again and again until the run has ended."""
    found: list[int] = []
    while launcher.poll() is None:
        with suppress(psutil.NoSuchProcess):  # it has just ended
            found.append(mapped_bytes(place.processes(launcher.pid)))
        time.sleep(0.005)
    return found


@pytest.mark.slow
def test_it_is_no_more_than_the_bound_at_any_time(place: FcMnist) -> None:
    place.configure(
        model__hidden_sizes=[UNITS] * LAYERS,
        runconfig__max_steps=STEPS,
        runconfig__save_checkpoints_steps=STEPS // 2,
        runconfig__weight_store="disk",
        runconfig__weight_store_memory=BOUND,
    )
    with place.start_wse(layout=LAYOUT) as launcher:
        found = sampled(place, launcher)
        out, err = launcher.communicate(timeout=STALL_S)
    assert launcher.returncode == 0, err
    assert "on disk in" in out, out
    # Processes are looked at one after the other: what one lets go of, the next may have by then.
    assert BOUND // 4 < max(found) <= BOUND + GROUP
