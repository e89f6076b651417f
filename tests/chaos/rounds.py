"""Round: a training is disturbed several times, then completed and judged."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path

import psutil
from chaos.configurations import (
    CONFIGURATIONS,
    Configuration,
    Results,
    is_over,
    place_of,
    results_in,
)
from support.fc_mnist import FcMnist
from support.testbed import Testbed

from csrun.context.deferred_termination import describe_signal

KILLS = 3  # of one training, which resumes after each
AMID = 0.5  # of the kills wait until a checkpoint is copied, or brought to the disk
IN_PHASE = 0.6  # of the others wait for a phase of an epoch, where the script tells them
PHASES = ("training", "evaluation", "end")  # of an epoch, as the script writes them
EPOCHS = 10  # that a kill may wait for
PHASE_S = 0.2  # from a phase's begin to its kill
LONGEST_S = 1.5  # from a process's birth to its kill: launch, compile and training fall into it
HUNG_S = 300.0  # no run takes as long, on a very busy machine either
GONE_S = 20.0  # for what ended to be gone
BORN_S = 300.0  # on a very busy machine
HUNG, BYTES, CODE, CAUSE, LEFT = "hung", "wrong bytes", "wrong exit code", "cause not named", "left"
FAULTS = (HUNG, BYTES, CODE, CAUSE, LEFT)
INTERRUPTED = "csrun_wse: error: interrupted"
TO_LAUNCHER = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Kill:
    """Signal to a role, a time after its start; or during the next checkpoint after that.

    phase: epoch number and phase name after whose start the signal is sent.
    """

    role: str
    signum: signal.Signals
    after_s: float
    is_amid: bool = False
    phase: tuple[int, str] | None = None

    def __str__(self) -> str:
        amid = ", amid a checkpoint" if self.is_amid else ""
        of = f" of {self.phase[1]} in epoch {self.phase[0]}" if self.phase else ""
        return f"{self.signum.name} to {self.role} after {self.after_s} s{of}{amid}"


@dataclass(frozen=True)
class Ended:
    """Ended run: exit code, None if it hung, and output."""

    code: int | None
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        """Lines that name a cause."""
        return [line for line in self.err.splitlines() if "error: " in line]


@dataclass
class Round:
    """Result of a round. faults: a kind of FAULTS, and a sentence."""

    repeat: str
    disturbed: int = 0
    faults: list[tuple[str, str]] = field(default_factory=list)

    def blame(self, kind: str, sentence: str) -> None:
        self.faults.append((kind, sentence))


def kill_round(
    folder: Path,
    name: str,
    seed: str,
    reference: Results,
    cluster: Testbed | None,
    kills: int = KILLS,
) -> Round:
    """Kill at random moments, resume after each, and check that nothing is lost."""
    found = Round(f"scripts/chaos --again {name}:{seed}")
    configuration = CONFIGURATIONS[name]
    chance, store = begin(name, seed)
    place = place_of(folder / f"{name}-{seed}", configuration, cluster, store=store)
    shared_memory = set(os.listdir("/dev/shm"))
    for _ in range(kills):
        if is_over(place, configuration):
            break
        kill = draw(configuration, chance)
        ended, came = _disturbed(place, configuration, kill, chance)
        found.disturbed += came
        judge_kill(found, kill, ended, came, is_over=is_over(place, configuration))
        judge_left(found, place, f"after {kill}")
    finish(found, place, configuration, reference)
    for name in sorted(set(os.listdir("/dev/shm")) - shared_memory):
        found.blame(LEFT, f"/dev/shm/{name}")
    return found


def begin(name: str, seed: str) -> tuple[random.Random, str | None]:
    """Random generator of a round, and the place of its weights."""
    chance = random.Random(f"{name} {seed}")
    return chance, chance.choice(CONFIGURATIONS[name].stores)


def draw(configuration: Configuration, chance: random.Random) -> Kill:
    """Draw the next kill."""
    role = chance.choice(configuration.roles)
    of_launcher = TO_LAUNCHER if configuration.interpreter else (signal.SIGKILL,)
    signum = chance.choice(of_launcher) if role == "launcher" else signal.SIGKILL
    after_s, is_amid = round(chance.uniform(0, LONGEST_S), 3), chance.random() < AMID
    if is_amid or not configuration.tells_phases or chance.random() >= IN_PHASE:
        return Kill(role, signum, after_s, is_amid)
    after_s = round(chance.uniform(0, PHASE_S), 3)
    phase = chance.randrange(EPOCHS), chance.choice(PHASES)
    return Kill(role, signum, after_s, phase=phase)


def _disturbed(
    place: FcMnist, configuration: Configuration, kill: Kill, chance: random.Random
) -> tuple[Ended, bool]:
    """Run with this kill; return False if the run ended before."""
    log = chance.choice(configuration.logs_of(kill.role))
    (place.path / "phase").unlink(missing_ok=True)
    with configuration.start(place) as launcher:
        pid = launcher.pid if kill.role == "launcher" else _born(place, launcher, log)
        came = False
        if pid is not None:
            if kill.phase is not None:
                await_phase(place, launcher, kill.phase)
            time.sleep(kill.after_s)
            if kill.is_amid:
                await_checkpoint(place, launcher)
            came = launcher.poll() is None and _send(pid, kill.signum)
        return end_of(place, launcher), came


def await_checkpoint(place: FcMnist, launcher: "subprocess.Popen[str]") -> None:
    """Wait until a checkpoint is being written, or the run has ended."""
    temporary = str(place.model_dir / ".csrun-*.tmp")
    _wait(lambda: bool(glob(temporary)) or launcher.poll() is not None, BORN_S, look_s=0.0005)


def await_phase(place: FcMnist, launcher: "subprocess.Popen[str]", wanted: tuple[int, str]) -> None:
    """Wait until the script has reached that phase of that epoch, or the run has ended."""

    def is_there() -> bool:
        words = (
            (place.path / "phase").read_text().split() if (place.path / "phase").exists() else ()
        )
        return len(words) == 2 and int(words[0]) >= wanted[0] and words[1] == wanted[1]

    _wait(lambda: is_there() or launcher.poll() is not None, HUNG_S, look_s=0.0005)


def _send(pid: int, signum: signal.Signals) -> bool:
    try:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return False
        os.kill(pid, signum)
    except (ProcessLookupError, psutil.Error):
        return False
    return True


def _born(place: FcMnist, launcher: "subprocess.Popen[str]", log: str) -> int | None:
    """Process that writes a log, once it exists; None if the run ends before."""
    found: list[int] = []

    def is_there() -> bool:
        found[:] = [pid for name, pid in writers(place.path) if name.startswith(log)]
        return bool(found) or launcher.poll() is not None

    _wait(is_there, BORN_S)
    return found[0] if found else None


def writers(folder: Path) -> list[tuple[str, int]]:
    """Processes that write a job's logs in the folder, by the log's name without suffix."""
    found = []
    for pid in psutil.pids():
        try:
            log = Path(os.readlink(f"/proc/{pid}/fd/1"))
        except OSError:
            continue
        if log.suffix == ".log" and log.is_relative_to(folder):
            found.append((log.stem, pid))
    return found


def end_of(place: FcMnist, launcher: "subprocess.Popen[str]") -> Ended:
    try:
        out, err = launcher.communicate(timeout=HUNG_S)
    except subprocess.TimeoutExpired:
        for process in living(place.path):
            process.kill()
        out, err = launcher.communicate()
        return Ended(None, out, err)
    return Ended(launcher.returncode, out, err)


def judge_kill(found: Round, kill: Kill, ended: Ended, came: bool, *, is_over: bool) -> None:
    """Check that the run ended with the expected exit code and message."""
    if ended.code is None:
        found.blame(HUNG, f"{kill}: {ended.out[-2000:]}{ended.err}")
        return
    if "Traceback" in ended.err:
        found.blame(CAUSE, f"{kill}: {ended.err}")
    if ended.code == 0 and is_over:
        return  # it came when all was done
    if not came:
        found.blame(CODE, f"exit code {ended.code} before {kill}: {ended.err}")
        return
    of_signal = {128 + kill.signum, -kill.signum} if kill.role == "launcher" else {137}
    if ended.code not in of_signal:
        found.blame(CODE, f"exit code {ended.code} after {kill}: {ended.err}")
    elif not _is_named(kill, ended):
        found.blame(CAUSE, f"{kill}: {ended.err}")


def _is_named(kill: Kill, ended: Ended) -> bool:
    if kill.role == "launcher":
        if kill.signum is signal.SIGINT and ended.errors == [INTERRUPTED]:
            return True  # there was no job yet
        if kill.signum is signal.SIGINT and not ended.out + ended.err:
            return True  # nor had the command been imported
        if (ended.code or 0) < 0:  # the shell says it
            return not ended.errors
        return f"{describe_signal(kill.signum)}: job terminated" in ended.err
    who = "the fork server" if kill.role == "forkserver" else f"({kill.role})"
    who = "wafer of" if kill.role == "wafer" else who
    return (
        len(ended.errors) == 1
        and who in ended.errors[0]
        and "was killed by signal 9 (SIGKILL)" in ended.errors[0]
    )


def judge_left(found: Round, place: FcMnist, when: str) -> None:
    """Check that no process of the job is left."""
    _wait(lambda: not living(place.path), GONE_S)
    for process in living(place.path):
        found.blame(LEFT, f"process {process.pid} {when}")
        process.kill()


def finish(found: Round, place: FcMnist, configuration: Configuration, reference: Results) -> None:
    """Complete the training; start a completed one again, which must change nothing."""
    with configuration.start(place) as launcher:
        ended = end_of(place, launcher)
    if ended.code is None:
        found.blame(HUNG, f"the last run: {ended.out[-2000:]}{ended.err}")
    elif ended.code:
        found.blame(CODE, f"exit code {ended.code} of the last run: {ended.err}")
    judge_end(found, place, configuration, reference)


def judge_end(
    found: Round, place: FcMnist, configuration: Configuration, reference: Results
) -> None:
    """Compare the results with the undisturbed training's; check for leftover files."""
    judge_left(found, place, "after the last run")
    results = results_in(place, configuration)
    for name in configuration.results:
        if results.get(name) != reference[name]:
            found.blame(BYTES, f"{name} is {'another' if name in results else 'not there'}")
    for path in place.model_dir.rglob(".*"):
        found.blame(LEFT, f"{path.relative_to(place.path)}")
    for system in json.loads(place.csctl("get", "systems", "-o", "json").stdout):
        if system["job"] is not None or system["waiting"]:
            found.blame(
                LEFT, f"{system['name']}: held by {system['job']}, {system['waiting']} wait"
            )
    for job in json.loads(place.csctl("get", "jobs", "-o", "json").stdout):
        if job["state"] in ("PENDING", "RUNNING", "COMPLETING"):
            found.blame(LEFT, f"job {job['job_id']} is {job['state']}")


def living(folder: Path) -> list[psutil.Process]:
    """Processes that work in the folder or write a log there."""
    logging = {pid for _, pid in writers(folder)}
    return [p for p in psutil.process_iter() if p.pid in logging or _works_in(p, str(folder))]


def _works_in(process: psutil.Process, folder: str) -> bool:
    try:
        return process.cwd() == folder
    except psutil.Error:
        return False  # gone, or a zombie


def _wait(condition: Callable[[], bool], seconds: float, look_s: float = 0.02) -> None:
    deadline_s = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(look_s)
