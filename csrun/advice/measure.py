"""Measurement of an input pipeline: several parallel workers, as streamers would run.

Each worker is forked, creates the data set for its own shard, and makes batches as fast as they are
received. All are measured over the same interval, after all have warmed up, except for a batch in
progress when it begins.
"""

import logging
import os
import select
import sys
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from math import inf, sqrt
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIGKILL, Signals
from time import perf_counter, process_time, sleep
from typing import NoReturn, Protocol

import msgspec
from threadpoolctl import threadpool_limits

from csrun.advice.measurements import Point, StageCost
from csrun.advice.numbers import spread
from csrun.data.dataset import Dataset
from csrun.data.errors import DataError
from csrun.data.input_operators import StageClock, StageTime
from csrun.data.sharding import sharded_as
from csrun.runtime.step.batch_maker import BatchNumbers

LOOK_MS = 200  # interval between checks of the deadline
READY = b"ready"
FAILED = b"failed: "  # and of messages to the user
START_AFTER_S = 0.05  # time until all workers know the common start
READINGS = 5  # readings of the clocks, less than 0.1 ms each: hardly one is preempted
LONGEST_BATCHES = 4  # timeout of a batch, in intervals or times of the first batch
LEAST_PATIENCE_S = 30.0  # least timeout: quick batches wait, too, while the machine is stopped
FIRST_S = 30.0  # a longer wait for a first batch is logged

log = logging.getLogger("csrun")
Make = Callable[[], Dataset]
Feed = Callable[[], int | None]  # delivers a batch and returns its rows, None at the end


class _WorkerInterval(msgspec.Struct, frozen=True):
    """Result of one worker in the interval."""

    samples: int
    seconds: float
    cpu_s: float
    starved_s: float
    stages: tuple[StageCost, ...]


@dataclass(frozen=True)
class _Moment:
    """Clocks of a worker at one moment, and the time to read them."""

    wall_s: float
    cpu_s: float
    starved_s: float
    took_s: float


class BatchTransfer(Protocol):
    """Transfer of batches from workers to their parent, as in a run.

    descriptors: readable in the parent when a worker has delivered batches.
    """

    descriptors: tuple[int, ...]

    def join(self, task: int) -> None:
        """Make this process worker `number`; called once in a worker."""

    def fed_by(self, dataset: Dataset, numbers: BatchNumbers) -> Feed:
        """In a worker, return a function that delivers the batches of a data set."""

    def take(self, descriptor: int) -> None:
        """Receive the batches of a worker, in the parent process."""

    def close(self) -> None:
        """In the parent, release all resources."""


@dataclass(frozen=True)
class Worker:
    """Forked worker, and the pipe to it."""

    pid: int
    pipe: Connection


def measure(
    make: Make,
    handoff: Callable[[int], BatchTransfer],
    tasks: int,
    cpus: int,
    seconds: float,
    real_cpus: Sequence[int],
) -> Point:
    """Run `tasks` workers for `seconds`, each on `cpus` of `real_cpus`, assigned in rotation.

    Raises: DataError if a worker fails, or makes no batch for a long time
    """
    workers: list[Worker] = []
    with closing(handoff(tasks)) as hands:
        try:
            # Before the fork: if set in a worker, OpenBLAS would start spinning threads there.
            with threadpool_limits(min(cpus, len(real_cpus)), user_api="blas"):
                for task in range(tasks):
                    shard, its_cpus = (task, tasks), _cpus_of(task, cpus, real_cpus)
                    workers.append(_fork(make, hands, shard, its_cpus))
            forked = perf_counter()
            _answers(workers, hands, None)
            start = perf_counter() + START_AFTER_S
            longest_s = max(LEAST_PATIENCE_S, LONGEST_BATCHES * max(seconds, start - forked))
            for worker in workers:
                with suppress(ConnectionError):  # a failed worker, reported by its answer
                    worker.pipe.send_bytes(msgspec.json.encode((start, seconds)))
            answers = _answers(workers, hands, start + longest_s)
        finally:
            for worker in workers:
                _end(worker)
    shares = [msgspec.json.decode(answer, type=_WorkerInterval) for answer in answers]
    return Point(
        tasks=tasks,
        cpus=cpus,
        samples_per_s=sum(share.samples / share.seconds for share in shares),
        busy_cpus=sum(share.cpu_s / share.seconds for share in shares),
        seconds=max(share.seconds for share in shares),
        stages=_mean([share.stages for share in shares]),
        starved_cpus=sum(share.starved_s / share.seconds for share in shares),
    )


def _fork(make: Make, hands: BatchTransfer, shard: tuple[int, int], cpus: set[int]) -> Worker:
    ours, theirs = Pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        ours.close()
        _run_worker(make, hands, shard, cpus, theirs)
    theirs.close()
    return Worker(pid, ours)


def _run_worker(
    make: Make, hands: BatchTransfer, shard: tuple[int, int], cpus: set[int], pipe: Connection
) -> NoReturn:
    """Run a forked worker; never returns."""
    code = 1
    _mute_repeated_warnings()
    with suppress(KeyboardInterrupt, BrokenPipeError, EOFError):
        try:
            os.sched_setaffinity(0, cpus)
            threadpool_limits(1, user_api="openmp")  # threads do not survive a fork
            with sharded_as(*shard):
                hands.join(shard[0])
                pipe.send_bytes(_share(make, hands, shard, pipe))
            code = 0
        except DataError as error:
            pipe.send_bytes(FAILED + str(error).encode())
        except Exception:
            traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def _mute_repeated_warnings() -> None:
    """Silence warnings that a streamer of a run logs once."""
    logging.getLogger("csrun").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")


def _share(make: Make, hands: BatchTransfer, shard: tuple[int, int], pipe: Connection) -> bytes:
    reader, parent = _EndlessBatches(make, hands, shard), os.getppid()
    reader.feed_one()
    pipe.send_bytes(READY)
    while not pipe.poll():  # keeps running as load for the others until all are warm
        reader.feed_one()
        _require(parent)
    start, seconds = msgspec.json.decode(pipe.recv_bytes(), type=tuple[float, float])
    sleep(max(0.0, start - perf_counter()))
    reader.forget_times()
    began = _moment()  # later than `start` if the last batch took long
    samples = 0
    while perf_counter() < began.wall_s + seconds or not samples:
        samples += reader.feed_one()
        _require(parent)
    ended = _moment()
    return msgspec.json.encode(
        _WorkerInterval(
            samples,
            ended.wall_s - began.wall_s,
            ended.cpu_s - began.cpu_s,
            ended.starved_s - began.starved_s,
            reader.costs(samples),
        )
    )


class _EndlessBatches:
    """Endless batches of a worker: after the last one, it starts again."""

    def __init__(self, make: Make, hands: BatchTransfer, shard: tuple[int, int]) -> None:
        self._make, self._hands, self._shard = make, hands, shard
        self._clocks: list[StageClock] = []
        self._took_s: defaultdict[str, list[float]] = defaultdict(list)  # times of a stage by batch
        self._open()

    def feed_one(self) -> int:
        """Make and deliver a batch, and return its rows."""
        rows = self._feed()
        if rows is None:
            self._open()
            rows = self._feed()
        if rows is None:
            index, count = self._shard
            raise DataError(f"input_fn: the data set of streamer {index} of {count} has no batches")
        if not self._parallel:  # threads work on several batches at once
            for name, time in dict(self._clocks[-1].stages).items():
                self._took_s[name].append(time.wall_s - self._before_s.get(name, 0.0))
                self._before_s[name] = time.wall_s
        return rows

    def forget_times(self) -> None:
        """Reset the stages' times."""
        for clock in self._clocks:
            clock.stages.clear()
        self._took_s.clear()
        self._before_s.clear()

    def costs(self, samples: int) -> tuple[StageCost, ...]:
        """Cost of each stage per sample."""
        times: dict[str, StageTime] = {}
        for clock in self._clocks:
            for name, time in clock.stages.items():
                total = times.setdefault(name, StageTime())
                total.wall_s += time.wall_s
                total.cpu_s += time.cpu_s
        return tuple(
            StageCost(
                name, time.wall_s / samples, time.cpu_s / samples, self._spread_s(name, samples)
            )
            for name, time in times.items()
        )

    def _spread_s(self, name: str, samples: int) -> float:
        """Spread of the batch time, per sample."""
        took_s = self._took_s[name]
        return spread(took_s) * len(took_s) / samples

    def _open(self) -> None:
        dataset = self._make()
        self._parallel = dataset.parallel
        self._clocks.append(dataset.clock)
        self._before_s: dict[str, float] = {}  # clock at the last batch
        self._feed = self._hands.fed_by(dataset, BatchNumbers(*self._shard))


def _moment() -> _Moment:
    """Read the three clocks as simultaneously as possible.

    A worker preempted between two of them reads them again, as a wait would be in one only.
    """
    return min((_read() for _ in range(READINGS)), key=lambda moment: moment.took_s)


def _read() -> _Moment:
    wall_s = perf_counter()
    return _Moment(wall_s, process_time(), _starved_s(), perf_counter() - wall_s)


def _starved_s() -> float:
    """Time that this process's threads have waited for a CPU; 0 if the kernel does not report it.

    Source: Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat, second field
    """
    waited_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # a thread that has just exited
            waited_ns += int(path.read_text().split()[1])
    return waited_ns / 1e9


def _require(parent: int) -> None:
    """Exit silently if the parent is gone."""
    if os.getppid() != parent:
        os._exit(1)


def _answers(
    workers: Sequence[Worker], hands: BatchTransfer, deadline: float | None
) -> list[bytes]:
    """Wait for the next answer of each worker, receiving their batches meanwhile.

    Without a deadline, for a first batch, a long wait is logged.

    Raises: DataError if one dies without an answer, or does not answer until the deadline
    """
    answers: dict[int, bytes] = {}
    overdue = perf_counter() + FIRST_S
    pipes = {worker.pipe.fileno(): worker for worker in workers}
    poll = select.poll()
    for descriptor in (*pipes, *hands.descriptors):
        poll.register(descriptor, select.POLLIN)
    while len(answers) < len(workers):
        if deadline is not None and perf_counter() > deadline:
            raise DataError(
                "input_fn: timeout: a worker made no batch: the pipeline hangs, or a batch takes "
                "much longer than the first"
            )
        if deadline is None and perf_counter() > overdue:
            overdue = inf
            waiting = len(workers) - len(answers)
            log.warning(
                "input_fn: no first batch of %d of %d worker(s) for %g s",
                waiting,
                len(workers),
                FIRST_S,
            )
        for descriptor, _ in poll.poll(LOOK_MS):
            if descriptor in pipes:
                answers[descriptor] = _received(pipes[descriptor])
                poll.unregister(descriptor)
            else:
                hands.take(descriptor)
    return [answers[descriptor] for descriptor in pipes]


def _received(worker: Worker) -> bytes:
    try:
        answer = worker.pipe.recv_bytes()
    except (EOFError, ConnectionResetError):
        raise DataError(_unexplained(worker)) from None
    if answer.startswith(FAILED):
        raise DataError(answer.removeprefix(FAILED).decode())
    return answer


def _unexplained(worker: Worker) -> str:
    """Describe how a worker died without an answer; it is not reaped yet."""
    ended = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    if ended is not None and ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
        name = Signals(ended.si_status).name
        return f"input_fn: a worker of the measurement was killed by {name}"
    return "input_fn: failed in a worker of the measurement; see its traceback above"


def _end(worker: Worker) -> None:
    with suppress(ProcessLookupError):
        os.kill(worker.pid, SIGKILL)
    os.waitpid(worker.pid, 0)
    worker.pipe.close()


def _cpus_of(task: int, cpus: int, real_cpus: Sequence[int]) -> set[int]:
    """Return the CPUs of a worker, assigned in rotation."""
    count = len(real_cpus)
    return {real_cpus[(task * cpus + k) % count] for k in range(min(cpus, count))}


def mean(one: Point, other: Point) -> Point:
    """Average two measurements of the same workers."""
    return Point(
        tasks=one.tasks,
        cpus=one.cpus,
        samples_per_s=(one.samples_per_s + other.samples_per_s) / 2,
        busy_cpus=(one.busy_cpus + other.busy_cpus) / 2,
        seconds=one.seconds + other.seconds,
        stages=_mean([one.stages, other.stages]),
        starved_cpus=(one.starved_cpus + other.starved_cpus) / 2,
    )


def _mean(all_costs: list[tuple[StageCost, ...]]) -> tuple[StageCost, ...]:
    """Average the workers by stage, in the order of the first one."""
    found: dict[str, list[StageCost]] = {}
    for costs in all_costs:
        for cost in costs:
            found.setdefault(cost.name, []).append(cost)
    workers = len(all_costs)
    return tuple(
        StageCost(
            name,
            sum(cost.wall_s for cost in same) / workers,
            sum(cost.cpu_s for cost in same) / workers,
            sqrt(sum(cost.spread_s**2 for cost in same) / workers),
        )
        for name, same in found.items()
    )
