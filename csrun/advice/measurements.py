"""What an analysis and the runs that it starts, on whatever node, leave for each other.

The analysis knows of an input pipeline what is in `Measurements`, and nothing else. Runs find the
folder by `csrun.context.analysis_dir`.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Self

import msgspec

from csrun.base import stored
from csrun.base.errors import UsageError
from csrun.context import jobs_dir_of
from csrun.context.job import LIVE_LOCK
from csrun.site import Site
from csrun.system import lock, try_lock

_PREFIX = "analysis-"


class MeasurementFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one process leaves for another, in the file of its kind."""

    FILE: ClassVar[str]

    def write(self, folder: Path) -> None:
        """Leave it in a folder."""
        stored.write(folder / self.FILE, self, durable=False)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """What was left in a folder; None when nothing was.

        Raises: CsrunError for what is not what was left
        """
        with suppress(FileNotFoundError):
            return stored.read(folder / cls.FILE, cls, "what was measured", "analyze again")
        return None


class StageCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one stage costs a sample in one worker. wall_s - cpu_s is spent waiting.

    spread_s: how much wall_s scatters from batch to batch; 0 when it is not known.
    """

    name: str
    wall_s: float
    cpu_s: float
    spread_s: float = 0.0


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measurement: `tasks` workers side by side, each with `cpus` CPUs, for `seconds`.

    samples_per_s: of all workers together. busy_cpus: CPU seconds that they used a second;
    starved_cpus: those for which they were ready to run, and had no CPU.
    stages: the workers' mean, in the order of the pipeline.
    """

    tasks: int
    cpus: int
    samples_per_s: float
    busy_cpus: float
    seconds: float
    stages: tuple[StageCost, ...]
    starved_cpus: float = 0.0


class OtherUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CPUs that other programs used while something was measured; names of the busiest of them."""

    cpus: float = 0.0
    busiest: tuple[str, ...] = ()


class Measurements(MeasurementFile, frozen=True, forbid_unknown_fields=True):
    """A model's input pipeline on this machine.

    machine_cpus: CPUs that the workers could use. sample_bytes: what a sample takes in the ring.
    estimated_samples_per_s: the compile's estimate of the CS system; wafer_samples_per_s: measured
    here, with batches that lie ready; None where it was not measured. wafer_spread: how much that
    rate varies from step to step; beside_wafer: what else ran meanwhile.
    streaming: whether the interpreter streams weights (python-ws). parallel: whether the pipeline
    uses more than one CPU when it has them. most_streamers: that it can be split among: its files,
    where each streamer reads files of its own; None for any number. replayed: whether each worker
    makes all batches, and throws the others' away.
    """

    FILE = "measurements.json"

    batch_size: int
    sample_bytes: int
    machine_cpus: int
    estimated_samples_per_s: float
    wafer_samples_per_s: float | None
    streaming: bool
    parallel: bool
    points: tuple[Point, ...]
    suggestions: tuple[str, ...] = ()
    most_streamers: int | None = None
    replayed: bool = False
    wafer_spread: float = 0.0
    beside_wafer: OtherUse = OtherUse()

    @property
    def least_disturbed(self) -> Point:
        """The point whose workers are least in each other's way."""
        return min(self.points, key=lambda point: (point.tasks, point.cpus))


class MeasureRequest(MeasurementFile, frozen=True, forbid_unknown_fields=True):
    """Tells a command that measures which rate is to be fed; without it, what the wafer takes."""

    FILE = "measure.json"

    target_samples_per_s: float


class FeedRequest(MeasurementFile, frozen=True, forbid_unknown_fields=True):
    """Asks a job that was started to train to feed only: its streamers stream, its chief takes
    their batches for `seconds` and leaves a `DeliveredRate`; there is no wafer, step or model_dir.
    """

    FILE = "feed.json"

    seconds: float


class DeliveredRate(MeasurementFile, frozen=True, forbid_unknown_fields=True):
    """What the streamers of a job delivered, all together, once their rings had been drained of
    what was made before: the rate that they keep up, over `seconds`.
    """

    FILE = "fed.json"

    samples_per_s: float
    seconds: float
    streamers: int


@contextmanager
def analysis_folder(site: Site) -> Iterator[Path]:
    """A folder beside the jobs' that lives as long as this; dead ones are removed, too.

    Raises: UsageError when none can be made
    """
    jobs_dir = jobs_dir_of(site.name, site.jobs_dir, site.shared)
    try:
        jobs_dir.mkdir(parents=True, exist_ok=True)
        _prune(jobs_dir)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=jobs_dir))
    except OSError as error:
        raise UsageError(
            f"{jobs_dir}: no folder can be made there: {error.strerror}; set CSRUN_STATE_DIR, or"
            " jobs_dir in the site file, to a folder that you may write"
        ) from error
    try:
        with lock(path / LIVE_LOCK, f"process {os.getpid()}"):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _prune(jobs_dir: Path) -> None:
    for path in jobs_dir.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            _remove_if_dead(path)


def _remove_if_dead(path: Path) -> None:
    dead = try_lock(path / LIVE_LOCK, "")
    if dead is not None:
        with dead:
            shutil.rmtree(path)
