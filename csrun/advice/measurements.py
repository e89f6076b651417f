"""Files exchanged by an analysis and the runs that it starts, on any node.

`Measurements` is all that the analysis knows about an input pipeline. Runs find the folder by
`csrun.context.analysis_dir`.
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
    """Struct that one process writes for another, one file per class."""

    FILE: ClassVar[str]

    def write(self, folder: Path) -> None:
        """Write it to a folder."""
        stored.write(folder / self.FILE, self, durable=False)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read it from a folder; None if absent.

        Raises: CsrunError for a damaged file
        """
        with suppress(FileNotFoundError):
            return stored.read(folder / cls.FILE, cls, "what was measured", "analyze again")
        return None


class StageCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cost of a stage per sample in one worker; wall_s - cpu_s is spent waiting.

    spread_s: spread of wall_s over batches; 0 if unknown.
    """

    name: str
    wall_s: float
    cpu_s: float
    spread_s: float = 0.0


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurement of `tasks` parallel workers, each with `cpus` CPUs, for `seconds`.

    samples_per_s: total of all workers. busy_cpus: CPU seconds used per second. starved_cpus: CPU
    seconds per second in which they were runnable without a CPU. stages: mean of the workers, in
    the order of the pipeline.
    """

    tasks: int
    cpus: int
    samples_per_s: float
    busy_cpus: float
    seconds: float
    stages: tuple[StageCost, ...]
    starved_cpus: float = 0.0


class BackgroundUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CPUs used by other programs during a measurement, and names of the busiest."""

    cpus: float = 0.0
    busiest: tuple[str, ...] = ()


class Measurements(MeasurementFile, frozen=True, forbid_unknown_fields=True):
    """Measurements of a model's input pipeline on this machine.

    machine_cpus: CPUs available to the workers. sample_bytes: size of a sample in the ring.
    estimated_samples_per_s: the compile's estimate for the CS system. wafer_samples_per_s: measured
    here with batches ready; None if not measured. wafer_spread: spread of that rate over steps.
    beside_wafer: other processes meanwhile. streaming: True if the interpreter streams weights
    (python-ws). parallel: True if the pipeline uses several CPUs. most_streamers: number of files
    if each streamer reads its own files; None for any number. replayed: True if each worker makes
    all batches, and drops those of others.
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
    beside_wafer: BackgroundUse = BackgroundUse()

    @property
    def least_disturbed(self) -> Point:
        """Point with the least contention among workers."""
        return min(self.points, key=lambda point: (point.tasks, point.cpus))


class MeasureRequest(MeasurementFile, frozen=True, forbid_unknown_fields=True):
    """Request to measure against a target rate; by default, that of the wafer."""

    FILE = "measure.json"

    target_samples_per_s: float


class EstimateRequest(MeasurementFile, frozen=True, forbid_unknown_fields=True):
    """Request to estimate the run that is compiled instead of measuring its input pipeline."""

    FILE = "estimate_request.json"

    streamers: int


class FeedRequest(MeasurementFile, frozen=True, forbid_unknown_fields=True):
    """Request to a training job to feed only: its streamers stream, its chief receives their
    batches for `seconds` and writes `Fed`, without a wafer, steps or a model_dir.
    """

    FILE = "feed.json"

    seconds: float


class DeliveredRate(MeasurementFile, frozen=True, forbid_unknown_fields=True):
    """Sustained total rate of a job's streamers over `seconds`, after their rings were drained."""

    FILE = "fed.json"

    samples_per_s: float
    seconds: float
    streamers: int


@contextmanager
def analysis_folder(site: Site) -> Iterator[Path]:
    """Temporary folder next to those of jobs; folders of dead analyses are removed.

    Raises: UsageError if it cannot be created
    """
    jobs_dir = jobs_dir_of(site.name, site.jobs_dir, site.shared)
    try:
        jobs_dir.mkdir(parents=True, exist_ok=True)
        _prune(jobs_dir)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=jobs_dir))
    except OSError as error:
        raise UsageError(
            f"{jobs_dir}: cannot create a folder: {error.strerror}; set CSRUN_STATE_DIR, or"
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
