"""What was measured of an input pipeline: the only thing that the analysis knows of it."""

from pathlib import Path

import msgspec

MEASUREMENTS_FILE = "measurements.json"


class StageCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one stage costs a sample in one worker. wall_s - cpu_s is spent waiting."""

    name: str
    wall_s: float
    cpu_s: float


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measurement: `tasks` workers side by side, each with `cpus` CPUs, for `seconds`.

    samples_per_s: of all workers together. busy_cpus: CPU seconds that they used a second.
    stages: the workers' mean, in the order of the pipeline.
    """

    tasks: int
    cpus: int
    samples_per_s: float
    busy_cpus: float
    seconds: float
    stages: tuple[StageCost, ...]


class Measurements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's input pipeline on this machine.

    machine_cpus: CPUs that the workers could use. sample_bytes: what a sample takes in the ring.
    estimated_samples_per_s: the compile's estimate of the CS system; wafer_samples_per_s: measured
    here, with batches that lie ready; None where it was not measured.
    streaming: whether the interpreter streams weights (python-ws). parallel: whether the pipeline
    uses more than one CPU when it has them.
    """

    batch_size: int
    sample_bytes: int
    machine_cpus: int
    estimated_samples_per_s: float
    wafer_samples_per_s: float | None
    streaming: bool
    parallel: bool
    points: tuple[Point, ...]
    suggestions: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Leave it in a folder."""
        path = folder / MEASUREMENTS_FILE
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2))

    @staticmethod
    def read(folder: Path) -> "Measurements":
        """What was left in a folder.

        Raises: FileNotFoundError when nothing was
        """
        return msgspec.json.decode((folder / MEASUREMENTS_FILE).read_bytes(), type=Measurements)
