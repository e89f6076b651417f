"""Role of a task in a run: the chief leads it, the others serve until it ends."""

from collections.abc import Sequence
from itertools import count

from csrun.base.errors import UsageError
from csrun.context import Role, TaskContext, TaskEntry
from csrun.context.job import RUNS_DIR, ended_file, peer_name
from csrun.data import Dataset
from csrun.runtime.roles import memoryx, streamer, swarmx
from csrun.runtime.roles.streamer import ReceiveOrder
from csrun.runtime.wire import rendezvous
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.messages import Results

_run_numbers = count()  # all tasks run the same script, so their run counts agree


def next_run_folder(context: TaskContext | None) -> rendezvous.RunFolder | None:
    """Rendezvous folder of the script's next run; None outside of a job."""
    return run_folder(context) if context and context.mode else None


def run_folder(context: TaskContext) -> rendezvous.RunFolder:
    """Create the folder of the script's next run."""
    path = context.job_dir / RUNS_DIR / str(next(_run_numbers))
    ended = {_peer_name(task): ended_file(context.job_dir, task.rank) for task in context.job.tasks}
    return rendezvous.RunFolder(path, str(context.job.job_id), context.secret, ended, context.host)


def task_role(context: TaskContext | None) -> Role:
    """Return the task's role; a script without a launcher is its own chief.

    Raises: UsageError for several tasks of a command that cannot train together
    """
    if context is None:
        return Role.CHIEF
    if context.role is Role.TASK:
        return _role_of_plain_task(context)
    return context.role


def serve(
    context: TaskContext,
    folder: rendezvous.RunFolder,
    datasets: Sequence[Dataset],
    receive_order: ReceiveOrder = lambda number, data_order: None,
) -> Results:
    """Serve as a task other than the chief, until the run ends.

    datasets, hear: of a streamer, as in `streamer.serve`.

    Raises: PeerLost if the chief is lost or abandons the run, a ChiefRefused if it does so with a
    UsageError
    """
    name, cpus = _peer_name(context.entry), context.streaming_cpus

    def part(channel: Channel) -> Results:
        match context.role:
            case Role.MEMORYX:
                return memoryx.serve(channel, folder)
            case Role.SWARMX:
                return swarmx.serve(channel, folder, name)
        return streamer.serve(channel, datasets, cpus, receive_order)

    results = rendezvous.join_run(folder, name, part)
    if rendezvous.RUN_FAILED in results:
        rendezvous.raise_failure(folder)
    return results


def _role_of_plain_task(context: TaskContext) -> Role:
    """Role of a task of another command than csrun's interpreters: alone, it trains on the CPU."""
    tasks = len(context.job.tasks)
    if tasks > 1:
        raise UsageError(
            f"{context.job.command[0]}: only tasks of python, python-pt and python-ws train "
            f"together, got {tasks} tasks; run the script with one of them, or with csrun_cpu"
        )
    return Role.CHIEF


def _peer_name(task: TaskEntry) -> str:
    serving = (Role.CHIEF, Role.MEMORYX, Role.SWARMX)
    return peer_name(task.role if task.role in serving else Role.STREAMER, task.rank)
