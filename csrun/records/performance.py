"""performance/performance.json: what a run cost and reached."""

from pathlib import Path

import msgspec

from csrun.files import write_whole
from csrun.records.disk import writing


class Performance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Units: times in seconds, rates in samples a second.

    est_samples_per_sec: the compiler's estimate of the CS system. programming_time: loading the
    executable. suspected_input_bottleneck: the wafer waited long for batches.
    """

    compile_time: float
    est_samples_per_sec: float
    programming_time: float
    samples_per_sec: float
    suspected_input_bottleneck: bool
    total_samples: int
    total_time: float


def write(model_dir: Path, performance: Performance) -> Path:
    """Write the file, and return its path."""
    path = model_dir / "performance" / "performance.json"
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.format(msgspec.json.encode(performance), indent=2))
    return path
