"""What was measured of an input pipeline: the only thing that the analysis knows of it.

The folder that these files are left in is that of `csrun.context.analysis_dir`.
"""

from pathlib import Path
from typing import ClassVar, Self

import msgspec

from csrun.base.files import write_whole


class Left(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one process leaves for another, in the file of its kind."""

    FILE: ClassVar[str]

    def write(self, folder: Path) -> None:
        """Leave it in a folder."""
        text = msgspec.json.format(msgspec.json.encode(self), indent=2)
        write_whole(folder / self.FILE, text, durable=False)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """What was left in a folder; None when nothing was."""
        path = folder / cls.FILE
        return msgspec.json.decode(path.read_bytes(), type=cls) if path.exists() else None


class StageCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one stage costs a sample in one worker. wall_s - cpu_s is spent waiting."""

    name: str
    wall_s: float
    cpu_s: float


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


class Measurements(Left, frozen=True, forbid_unknown_fields=True):
    """A model's input pipeline on this machine.

    machine_cpus: CPUs that the workers could use. sample_bytes: what a sample takes in the ring.
    estimated_samples_per_s: the compile's estimate of the CS system; wafer_samples_per_s: measured
    here, with batches that lie ready; None where it was not measured.
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


class MeasureRequest(Left, frozen=True, forbid_unknown_fields=True):
    """Tells a command that measures which rate is to be fed; without it, what the wafer takes."""

    FILE = "measure.json"

    target_samples_per_s: float


class FeedRequest(Left, frozen=True, forbid_unknown_fields=True):
    """Asks a job that was started to train to feed only: its streamers stream, its chief takes
    their batches for `seconds` and leaves `Fed`; there is no wafer, no step, no model_dir.
    """

    FILE = "feed.json"

    seconds: float


class Fed(Left, frozen=True, forbid_unknown_fields=True):
    """What the streamers of a job delivered, all together, once their rings had been drained of
    what was made before: the rate that they keep up, over `seconds`.
    """

    FILE = "fed.json"

    samples_per_s: float
    seconds: float
    streamers: int
