"""Measures an input pipeline by itself: several workers side by side, as streamers would run.

Each worker is forked, makes the data set anew as one of so many shards, and makes batches as fast
as they are taken from it. All are measured over the same interval, after all have warmed up, but
for the batch that one is still making when it begins.
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
from csrun.data.operators import StageClock, StageTime
from csrun.data.sharding import sharded_as
from csrun.runtime.step.batch_maker import BatchNumbers

LOOK_MS = 200  # how often the deadline is looked at
READY = b"ready"
FAILED = b"failed: "  # and what a user is told
START_AFTER_S = 0.05  # all workers know by then when to begin
READINGS = 5  # of the clocks, less than 0.1 ms each: a time slice ends in hardly one of them
LONGEST_BATCHES = 4  # intervals, or times of a first batch, that a worker has for its next one
LEAST_PATIENCE_S = 30.0  # with it all the same: quick batches, too, wait where the machine stops
FIRST_S = 30.0  # a wait for a first batch as long as this is worth a line

log = logging.getLogger("csrun")
Make = Callable[[], Dataset]
Feed = Callable[[], int | None]  # puts a batch where it is wanted: its rows, None at the end


class _WorkerInterval(msgspec.Struct, frozen=True):
    """What one worker did in the interval."""

    samples: int
    seconds: float
    cpu_s: float
    starved_s: float
    stages: tuple[StageCost, ...]


@dataclass(frozen=True)
class _Moment:
    """What a worker's clocks show at one moment, and how long reading them took."""

    wall_s: float
    cpu_s: float
    starved_s: float
    took_s: float


class Handoff(Protocol):
    """How batches get from so many workers into other hands, as in a run.

    descriptors: readable in the parent when a worker has given batches away.
    """

    descriptors: tuple[int, ...]

    def join(self, task: int) -> None:
        """In a worker, once: which one it is."""

    def fed_by(self, dataset: Dataset, numbers: BatchNumbers) -> Feed:
        """In a worker: what gives away one batch of a data set after the other."""

    def take(self, descriptor: int) -> None:
        """In the parent: take what a worker has given away."""

    def close(self) -> None:
        """In the parent: the end of it."""


@dataclass(frozen=True)
class Worker:
    """A forked worker, and the pipe to it."""

    pid: int
    pipe: Connection


def measure(
    make: Make,
    handoff: Callable[[int], Handoff],
    tasks: int,
    cpus: int,
    seconds: float,
    real_cpus: Sequence[int],
) -> Point:
    """Run `tasks` workers, each on `cpus` of the CPUs `real_cpus` in turn, for `seconds`.

    Raises: DataError when a worker fails, or makes no batch in a long time
    """
    workers: list[Worker] = []
    with closing(handoff(tasks)) as hands:
        try:
            # Before the fork: set in a worker, OpenBLAS would start threads there, which spin.
            with threadpool_limits(min(cpus, len(real_cpus)), user_api="blas"):
                for task in range(tasks):
                    shard, its_cpus = (task, tasks), _cpus_of(task, cpus, real_cpus)
                    workers.append(_fork(make, hands, shard, its_cpus))
            forked = perf_counter()
            _answers(workers, hands, None)
            start = perf_counter() + START_AFTER_S
            longest_s = max(LEAST_PATIENCE_S, LONGEST_BATCHES * max(seconds, start - forked))
            for worker in workers:
                with suppress(ConnectionError):  # of one that has failed, which its answer tells
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


def _fork(make: Make, hands: Handoff, shard: tuple[int, int], cpus: set[int]) -> Worker:
    ours, theirs = Pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        ours.close()
        _be_worker(make, hands, shard, cpus, theirs)
    theirs.close()
    return Worker(pid, ours)


def _be_worker(
    make: Make, hands: Handoff, shard: tuple[int, int], cpus: set[int], pipe: Connection
) -> NoReturn:
    """The whole life of a forked worker: it never comes back into the code around the fork."""
    code = 1
    _say_nothing_twice()
    with suppress(KeyboardInterrupt, BrokenPipeError, EOFError):
        try:
            os.sched_setaffinity(0, cpus)
            threadpool_limits(1, user_api="openmp")  # a forked process has lost its threads
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


def _say_nothing_twice() -> None:
    """No warnings: a streamer of a run gives them; so many workers would give them all the time."""
    logging.getLogger("csrun").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")


def _share(make: Make, hands: Handoff, shard: tuple[int, int], pipe: Connection) -> bytes:
    reader, parent = _EndlessBatches(make, hands, shard), os.getppid()
    reader.feed_one()
    pipe.send_bytes(READY)
    while not pipe.poll():  # warm, and a load to the others, until all are
        reader.feed_one()
        _require(parent)
    start, seconds = msgspec.json.decode(pipe.recv_bytes(), type=tuple[float, float])
    sleep(max(0.0, start - perf_counter()))
    reader.forget_times()
    began = _moment()  # later than `start` where the last batch took long
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
    """One worker's batches without end: after the last one it begins anew."""

    def __init__(self, make: Make, hands: Handoff, shard: tuple[int, int]) -> None:
        self._make, self._hands, self._shard = make, hands, shard
        self._clocks: list[StageClock] = []
        self._took_s: defaultdict[str, list[float]] = defaultdict(list)  # a stage, batch by batch
        self._open()

    def feed_one(self) -> int:
        """Make a batch, and put it where it is wanted; its rows."""
        rows = self._feed()
        if rows is None:
            self._open()
            rows = self._feed()
        if rows is None:
            index, count = self._shard
            raise DataError(f"input_fn: the data set of streamer {index} of {count} has no batch")
        if not self._parallel:  # threads work for several batches at once
            for name, time in dict(self._clocks[-1].stages).items():
                self._took_s[name].append(time.wall_s - self._before_s.get(name, 0.0))
                self._before_s[name] = time.wall_s
        return rows

    def forget_times(self) -> None:
        """The stages' times begin here."""
        for clock in self._clocks:
            clock.stages.clear()
        self._took_s.clear()
        self._before_s.clear()

    def costs(self, samples: int) -> tuple[StageCost, ...]:
        """What each stage cost a sample."""
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
        """Of a batch's time, a sample."""
        took_s = self._took_s[name]
        return spread(took_s) * len(took_s) / samples

    def _open(self) -> None:
        dataset = self._make()
        self._parallel = dataset.parallel
        self._clocks.append(dataset.clock)
        self._before_s: dict[str, float] = {}  # what the clock had counted at the last batch
        self._feed = self._hands.fed_by(dataset, BatchNumbers(*self._shard))


def _moment() -> _Moment:
    """The three clocks as near to one moment as they can be read.

    A worker that loses its CPU between two of them reads them anew: a wait would be in one only.
    """
    return min((_read() for _ in range(READINGS)), key=lambda moment: moment.took_s)


def _read() -> _Moment:
    wall_s = perf_counter()
    return _Moment(wall_s, process_time(), _starved_s(), perf_counter() - wall_s)


def _starved_s() -> float:
    """How long this process's threads have waited for a CPU; 0 where the kernel does not tell.

    Source: Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat, second field
    """
    waited_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # a thread that has just ended
            waited_ns += int(path.read_text().split()[1])
    return waited_ns / 1e9


def _require(parent: int) -> None:
    """End without a word when nobody waits for the result any more."""
    if os.getppid() != parent:
        os._exit(1)


def _answers(workers: Sequence[Worker], hands: Handoff, deadline: float | None) -> list[bytes]:
    """The next thing that each worker says; their batches are taken meanwhile.

    Without a deadline, of a first batch, a long wait is told.

    Raises: DataError when one ends without a word, or has said nothing until the deadline
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
                "input_fn: a worker made no batch in a long time: the pipeline hangs, or a batch "
                "takes much longer than the first"
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
    """How a worker ended that has not said why; it is not reaped yet."""
    ended = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    if ended is not None and ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
        name = Signals(ended.si_status).name
        return f"input_fn: {name} ended a worker of the measurement"
    return "input_fn: failed in a worker of the measurement, as its traceback above says"


def _end(worker: Worker) -> None:
    with suppress(ProcessLookupError):
        os.kill(worker.pid, SIGKILL)
    os.waitpid(worker.pid, 0)
    worker.pipe.close()


def _cpus_of(task: int, cpus: int, real_cpus: Sequence[int]) -> set[int]:
    """The CPUs of a worker: all workers together take the real ones in turn."""
    count = len(real_cpus)
    return {real_cpus[(task * cpus + k) % count] for k in range(min(cpus, count))}


def mean(one: Point, other: Point) -> Point:
    """Two measurements of the same workers as one."""
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
    """The workers' mean, stage by stage, in the order of the first one's."""
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
