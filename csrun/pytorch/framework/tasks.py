"""Functions about the job's tasks; the script need not split batches, because csrun does."""

import re
import time
from collections import Counter
from pathlib import Path

import torch

from csrun.base.errors import PeerLost
from csrun.base.files import write_atomic
from csrun.context import current
from csrun.context.job import ended_file
from csrun.pytorch.framework.script import script
from csrun.pytorch.settings import is_chief
from csrun.pytorch.user import active

_POLL_S = 0.02
_met: Counter[str] = Counter()  # by tag


def use_cs() -> bool:
    """True if the script runs on a CS system, or is compiled for one."""
    return script.is_begun


def is_master_ordinal() -> bool:
    """True in the task that writes files."""
    return is_chief(current())


def is_streamer() -> bool:
    """True in a task that makes batches; without a job the only one does."""
    context = current()
    return context is None or context.mode is None or context.rank in context.streamers


def get_ordinal() -> int:
    """Return this task's rank."""
    context = current()
    return context.rank if context else 0


def num_tasks() -> int:
    """Return the number of tasks of the job."""
    context = current()
    return len(context.job.tasks) if context else 1


def num_receivers() -> int:
    """Return 1: the chief receives all results."""
    return 1


def num_streamers() -> int:
    """Return 1: the script gives each streamer all data, and csrun selects its batches."""
    return 1


def get_streaming_rank() -> int:
    """Return 0, the rank for `num_streamers`."""
    return 0


def rendezvous(tag: str, payload: str = "", replicas: object = None) -> list[str]:
    """Wait for all tasks of the job; return their payloads by rank.

    Within a Session's block, where only the chief runs, and without a job: its own payload.

    Raises: PeerLost if a task has ended before
    """
    context = current()
    if context is None or context.mode is None or active:
        return [payload]
    _met[tag] += 1
    name = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', tag)}.{_met[tag]}"
    folder = context.job_dir / "barriers" / name
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / str(context.rank), payload.encode())
    ranks = [task.rank for task in context.job.tasks]
    while not all((folder / str(rank)).exists() for rank in ranks):
        _require_tasks(context.job_dir, folder, ranks, tag)
        time.sleep(_POLL_S)
    return [(folder / str(rank)).read_text() for rank in ranks]


def _require_tasks(job_dir: Path, folder: Path, ranks: list[int], tag: str) -> None:
    """Raises: PeerLost if a task has ended without calling it"""
    for rank in ranks:
        if ended_file(job_dir, rank).exists() and not (folder / str(rank)).exists():
            raise PeerLost(f"rendezvous {tag!r}: task {rank} has ended without reaching it")


def get_run_step() -> int:
    """Return the steps of this run so far."""
    return script.state.run_step


def is_wse_device() -> bool:
    """True if the script runs on a CS system, or is compiled for one."""
    return use_cs()


def is_receiver() -> bool:
    """True in the task that gets the results of steps."""
    return is_master_ordinal()


def is_sync_mode() -> bool:
    """False: only the chief logs."""
    return False


def device() -> torch.device:
    """Return the device of tensors that the script creates: the CPU."""
    return torch.device("cpu")


def set_run_config(num_steps: int, checkpoint_steps: int, fetch_steps: int) -> None:
    """Ignore the schedule of a run; csrun follows the loop instead."""


def set_target_num_replicas(replicas: int) -> None:
    """Accept the number of replicas; -1 requests as many as fit, which csrun's compiler decides."""


def set_metric_state_names(state: object, name: str) -> None:
    """Ignore the names of a metric's state in weight streaming."""
