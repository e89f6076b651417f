"""Kinds of files that csrun reads back: intact files, readers, and permitted results of damage."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from support import handmade

from csrun.advice.measurements import FeedRequest, Measurements, Point
from csrun.base import stored
from csrun.base.mode import ExecutionMode
from csrun.compiler import compile_directory
from csrun.context import JobFile, Role, TaskEntry, Telemetry
from csrun.context.job import LeaseRecord, LeaseRecords, now, read_leases, read_secret
from csrun.context.launcher_link import TaskReport, TaskReportKind
from csrun.data.formats import decoded
from csrun.executable import load
from csrun.jobs import overview, register
from csrun.jobs.folder import JobFolder
from csrun.jobs.record import JobRecord
from csrun.jobs.registered_job import registered
from csrun.jobs.request import JobOptions
from csrun.launch.process import usage_log
from csrun.launch.process.protocol import StartTask
from csrun.launch.process.task_usage import TaskUsage
from csrun.launch.slurm import mailbox
from csrun.params.command_line import load as load_params
from csrun.params.entry_point import Params
from csrun.records import checkpoints, model_dir
from csrun.runtime.wire import rendezvous
from csrun.site import Site
from csrun.site import load as load_site
from csrun.system import Power, SystemState, holder_of, is_held, load_state, save_state, try_lock
from csrun.system.find import users_of
from csrun.system.lock import held_by, lock_errors

SITE = load_site("local")
SYSTEM = SITE.systems[0]
SHIPPED_SITE = Path(__file__).parents[2] / "site_configs" / "local.yaml"
ENTRY = TaskEntry(rank=0, role=Role.CHIEF, node="node1", node_id=0, local_rank=0, cpus=(0, 1))
JOB = JobFile(1, ExecutionMode.PIPELINED, ("python", "run.py"), "/", "local", 1, 2, (ENTRY,))


@dataclass(frozen=True)
class Kind:
    """Kind of files in a folder.

    make: writes intact files. read: result of reading them. damaged: patterns of files to damage.
    is_allowed: whether damage may lead to another result; None: never, but to an error of csrun.
    warned: messages logged meanwhile.
    """

    make: Callable[[Path], None]
    read: Callable[[Path], Any]
    damaged: tuple[str, ...]
    is_allowed: Callable[[Any, Any, list[str]], bool] = lambda result, whole, warned: False
    may_be_a_pipe: bool = False


STATE = {"fc/kernel": np.arange(6, dtype=np.float32), "fc/bias": np.ones(2, np.float64)}
STEPS = (100, 200, 300)


def tensors(step: int) -> dict[str, np.ndarray]:
    return {name: array + step for name, array in STATE.items()}


def make_checkpoints(folder: Path) -> None:
    for step in STEPS:
        checkpoints.write(folder, step, tensors(step), {"seed": "1"}, 5)


def read_checkpoints(folder: Path) -> Any:
    found = checkpoints.latest(folder)
    if found is None:
        return None
    target = {name: np.zeros_like(array) for name, array in STATE.items()}
    found.restore(target)
    return found.step, found.manifest.identity, [array.tobytes() for array in target.values()]


def is_an_older_one(result: Any, whole: Any, warned: list[str]) -> bool:
    if result is None or not warned:
        return False
    step, identity, content = result
    written = [array.tobytes() for array in tensors(step).values()]
    return step in STEPS and identity == whole[1] and content == written


def write_checkpoint(folder: Path) -> Any:
    """Continue a training in the folder: result or error, and nothing written elsewhere."""
    victim = folder.parent / "victim"
    victim.write_text("precious")
    with model_dir.opened(folder), model_dir.locked(folder, "job 1"):
        checkpoints.write(folder, 400, tensors(400), {"seed": "1"}, 2)
    assert victim.read_text() == "precious"
    return read_checkpoints(folder)


FILES = {
    "program.py": handmade.PROGRAM,
    "plan.json": msgspec.json.encode(handmade._plan(ExecutionMode.PIPELINED)).decode(),
}


def make_compile(folder: Path) -> None:
    handmade.make(folder / "tfcs_0", ExecutionMode.PIPELINED)


def read_compile(folder: Path) -> Any:
    found = compile_directory.read(folder / "tfcs_0")
    return found and (found.program, found.plan)


def compile_anew(folder: Path) -> Any:
    """Compile again if `read_compile` refuses the files, which must then be intact."""
    if compile_directory.read(folder / "tfcs_0") is None:
        from csrun.executable import manifest_of

        files = FILES | {"manifest.json": manifest_of(FILES)}
        compile_directory.write(folder / "tfcs_0", files)
    found = load(folder / "tfcs_0")
    return found.program, found.plan


def make_job(folder: Path) -> None:
    JOB.write(folder)
    stored.write(folder / "plan.json", JOB)
    Telemetry(("cs2-01",), "training", 5, 9, None, 1024, "loss 1", 0.0).write(folder)
    uses = (LeaseRecord("cs2-01", now(), now()),)
    stored.write(folder / "systems.json", LeaseRecords(uses))
    TaskReport(0, TaskReportKind.EXIT, "sys.exit was called", "", 7, 1.0, 10).write(folder)
    with open(os.open(folder / "secret", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(bytes(range(32)))
    live = try_lock(folder / "live.lock", "job 1 (process 5)")
    assert live is not None
    live.release()


def read_lock(folder: Path) -> Any:
    path = folder / "live.lock"
    said = is_held(path), len(holder_of(path)) <= 200, bool(held_by(path))
    with lock_errors(path):
        taken = try_lock(path, "job 2")
    if taken is not None:
        taken.release()
    return said, taken is not None


def make_run(folder: Path) -> None:
    run = folder / "0"
    run.mkdir()
    (folder / "ended").touch()
    endpoint = rendezvous.Endpoint(rendezvous.new_unix_name(), None, None)
    stored.write(run / "endpoint", endpoint, durable=False)
    rendezvous.announce_done(rendezvous.RunFolder(run, "1", b""), {"loss": 0.1, "step": 3.0})
    stored.write(run / "failed.json", rendezvous.Failure("no more", True))


def read_run(folder: Path) -> Any:
    ended = {rendezvous.CHIEF: folder / "ended"}
    return rendezvous.join(rendezvous.RunFolder(folder / "0", "1", b"", ended), "streamer 1")


def make_register(folder: Path) -> None:
    os.environ["CSRUN_STATE_DIR"] = str(folder)
    for _ in range(3):
        with registered(SITE, ("true",), JobOptions(), 1, 1):
            pass
    (folder / "local" / "records" / "3.json").unlink()  # so that only the counter knows of it
    (folder / "local" / "jobs" / "3" / "live.lock").unlink()


def read_records(folder: Path) -> Any:
    os.environ["CSRUN_STATE_DIR"] = str(folder)
    list(overview.jobs(SITE, all_states=True))
    found = {record.job_id: record for record in register.read_all(SITE)}
    return {job_id: _lasting(record) for job_id, record in found.items()}


def _lasting(record: JobRecord) -> JobRecord:
    """Record without the time at which a loss was detected."""
    return msgspec.structs.replace(record, ended=None)


def some_records(result: Any, whole: Any, warned: list[str]) -> bool:
    return all(whole.get(job_id) == record for job_id, record in result.items())


def draw_number(folder: Path) -> Any:
    os.environ["CSRUN_STATE_DIR"] = str(folder)
    with registered(SITE, ("true",), JobOptions(), 1, 1) as job:
        return job.job_id


def make_states(folder: Path) -> None:
    os.environ["CSRUN_STATE_DIR"] = str(folder)
    save_state(SITE, SYSTEM, SystemState(Power.STANDBY, ExecutionMode.WEIGHT_STREAMING))
    users_of(SITE, SYSTEM)
    lease = try_lock(folder / "local" / "systems" / "cs2-01.lock", "job 1 (process 5)")
    assert lease is not None
    lease.release()


def read_states(folder: Path) -> Any:
    os.environ["CSRUN_STATE_DIR"] = str(folder)
    return load_state(SITE, SYSTEM), users_of(SITE, SYSTEM)


def as_in_the_site_file(result: Any, whole: Any, warned: list[str]) -> bool:
    of_site = SystemState(Power.ACTIVE, SYSTEM.mode)
    gone = not (Path(os.environ["CSRUN_STATE_DIR"]) / "local/systems/cs2-01.json").exists()
    return bool(result == (of_site, 0) and (warned or gone))


MEASURED = Measurements(8, 4, 2, 10.0, None, False, True, (Point(1, 1, 5.0, 1.0, 1.0, ()),))


def make_measured(folder: Path) -> None:
    MEASURED.write(folder)
    FeedRequest(3.0).write(folder)


def read_measured(folder: Path) -> Any:
    return Measurements.read(folder), FeedRequest.read(folder)


MESSAGES = [
    mailbox.StartAll(JOB, True),
    StartTask(0, ("python", "run.py")),
    mailbox.ReleaseAgents(),
]


def make_mail(folder: Path) -> None:
    (folder / mailbox.MAIL_DIR).mkdir()
    box = mailbox.Outbox(mailbox.launcher_mailbox(folder))
    for message in MESSAGES:
        box.post(message)


def read_mail(folder: Path) -> Any:
    decoder = msgspec.msgpack.Decoder(mailbox.ToNodeAgents)
    return mailbox.MailboxReader(mailbox.launcher_mailbox(folder), decoder).read()


def accept_prefix(result: Any, whole: Any, warned: list[str]) -> bool:
    """Accept a prefix of the posts, as others may follow; a copied post is valid."""
    return bool(result[: len(whole)] == whole[: len(result)])


def make_usage(folder: Path) -> None:
    for number in range(3):
        with (folder / "usage-0.log").open("ab") as file:
            file.write(usage_log._line_of(usage_sample(number)))


def usage_sample(number: int) -> usage_log.UsageSample:
    usage = TaskUsage("rank-00000", 7, "S", 1.0 + number, 0.5 * number, 1000)
    return usage_log.UsageSample(1e9 + usage_log.EVERY_S * number, (usage,))


def read_usage(folder: Path) -> Any:
    """Values of a single sample: CPU shares depend on the one before."""
    found = usage_log.UsageReader(folder).history()
    return [(s.taken_s, [*s.loads], s.loads["rank-00000"].memory_bytes) for s in found]


def accept_other_samples(result: Any, whole: Any, warned: list[str]) -> bool:
    """Accept written samples: a thinning keeps those that it can read."""
    written = [(usage_sample(n).taken_s, ["rank-00000"], 1000) for n in range(4)]
    return all(sample in written for sample in result)


def thin_usage(folder: Path) -> Any:
    """A writer's sample for a file that is full."""
    writer = usage_log.UsageWriter(JobFolder(folder), 0)
    writer._samples = usage_log.MOST_SAMPLES
    with suppress(OSError):
        writer._append(usage_sample(3))
    return read_usage(folder)


def accept_subset(result: Any, whole: Any, warned: list[str]) -> bool:
    return set(map(str, result)) <= set(map(str, whole))


def make_params(folder: Path) -> None:
    text = "runconfig:\n  max_steps: 10\n  log_steps: 5\n  model_dir: here\n  seed: 3\n"
    (folder / "params.yaml").write_text(text)


def make_site(folder: Path) -> None:
    (folder / "site.yaml").write_bytes(SHIPPED_SITE.read_bytes())


def read_params(folder: Path) -> Any:
    return load_params(Params, folder / "params.yaml")


def read_site(folder: Path) -> Site:
    return load_site(str(folder / "site.yaml"))


def make_decoded(folder: Path) -> None:
    decoded._keep(folder, np.arange(12.0))


def read_decoded(folder: Path) -> Any:
    kept = decoded._entry_in(folder)
    return None if kept is None else kept.tolist()


def make_loop_values(folder: Path) -> None:
    import torch

    from csrun.pytorch.step.value_log import ValueLog

    kept = ValueLog(folder, 0)
    kept.add_losses([0, 1, 2], [1, 2, 3], [6.25, 5.5, 0.125])
    kept.add(1, 7, 2, torch.arange(4.0))
    kept.add_losses([3], [4], [0.5])
    kept.close()


def read_loop_values(folder: Path) -> Any:
    from csrun.pytorch.step.value_log import ValueLog

    kept = ValueLog(folder, 4)
    value = kept.value(1, 7)
    return [*map(kept.loss, range(4)), None if value is None else value.tolist()]


def accept_none(result: Any, whole: Any, warned: list[str]) -> bool:
    return result is None


def accept_empty(result: Any, whole: Any, warned: list[str]) -> bool:
    return not result


def accept_anything(result: Any, whole: Any, warned: list[str]) -> bool:
    return True


def accept_equal_length(result: Any, whole: Any, warned: list[str]) -> bool:
    """Accept a secret of equal length, which cannot be checked; peers without it are refused."""
    return isinstance(result, bytes) and len(result) == len(whole)


def accept_missing_items(result: Any, whole: Any, warned: list[str]) -> bool:
    return all(one in (None, other) for one, other in zip(result, whole, strict=True))


CHECKPOINT_FILES = ("checkpoint", "model-ckpt-*")
COMPILE_FILES = ("tfcs_0/manifest.json", "tfcs_0/plan.json", "tfcs_0/program.py")

KINDS = {
    "checkpoints": Kind(make_checkpoints, read_checkpoints, CHECKPOINT_FILES, is_an_older_one),
    "index": Kind(make_checkpoints, read_checkpoints, ("checkpoint",), is_an_older_one),
    "resume": Kind(make_checkpoints, write_checkpoint, CHECKPOINT_FILES),
    "compile": Kind(make_compile, read_compile, COMPILE_FILES, accept_none),
    "compile_anew": Kind(make_compile, compile_anew, COMPILE_FILES),
    "job": Kind(make_job, JobFile.read, ("job.json",)),
    "telemetry": Kind(make_job, Telemetry.read, ("telemetry.json",), accept_none),
    "uses": Kind(make_job, read_leases, ("systems.json",), accept_empty),
    "report": Kind(make_job, lambda folder: TaskReport.read(folder, "0"), ("reports/0.json",),
                   accept_none),
    "secret": Kind(make_job, lambda folder: read_secret(folder / "secret"), ("secret",),
                   accept_equal_length),
    "lock": Kind(make_job, read_lock, ("live.lock",), accept_anything),
    "run": Kind(make_run, read_run, ("0/endpoint", "0/done.json", "0/failed.json")),
    "records": Kind(make_register, read_records, ("local/records/*.json",), some_records),
    "number": Kind(make_register, draw_number, ("local/last_job", "local/records/*.json",
                                                "local/jobs/*/live.lock", "local/last_job.lock")),
    "state": Kind(make_states, read_states, ("local/systems/*.json", "local/systems/*.lock"),
                  as_in_the_site_file),
    "measurements": Kind(make_measured, read_measured, ("*.json",), accept_missing_items),
    "mail": Kind(make_mail, read_mail, ("mail/launcher",), accept_prefix),
    "usage": Kind(make_usage, read_usage, ("usage-0.log",), accept_subset),
    "thinned_usage": Kind(make_usage, thin_usage, ("usage-0.log",), accept_other_samples),
    "params": Kind(make_params, read_params, ("params.yaml",), accept_anything, may_be_a_pipe=True),
    "site": Kind(make_site, read_site, ("site.yaml",), accept_anything),
    "decoded": Kind(make_decoded, read_decoded, ("array.*",), accept_none),
}  # fmt: skip
if find_spec("torch"):
    KINDS["loop_values"] = Kind(
        make_loop_values, read_loop_values, ("loop_values",), accept_missing_items
    )
