"""performance/performance.json: what a run cost and reached."""

from pathlib import Path

import msgspec

from csrun.base.files import write_whole, writing


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the input did to the steps.

    verdict: not bound (they waited less than 5 % of their time for batches), moderate (to 20 %) or
    bound. streamers_needed: so many would have kept them busy; None where each makes all batches,
    and no number would. slowest_stage: of the pipeline.
    """

    verdict: str = "not bound"
    wait_share: float = 0.0
    streamers: int = 0
    streamers_needed: int | None = 0
    slowest_stage: str | None = None

    @property
    def is_bottleneck(self) -> bool:
        """Whether the input held the run up."""
        return self.verdict == "bound"


class Performance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Units: times in seconds, rates in samples a second.

    est_samples_per_sec: the compiler's estimate of the CS system. programming_time: loading the
    executable. suspected_input_bottleneck: whether `input`'s verdict is bound.
    """

    compile_time: float
    est_samples_per_sec: float
    programming_time: float
    samples_per_sec: float
    suspected_input_bottleneck: bool
    total_samples: int
    total_time: float
    input: Input = Input()


def write(model_dir: Path, performance: Performance) -> Path:
    """Write the file, and return its path."""
    path = model_dir / "performance" / "performance.json"
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.format(msgspec.json.encode(performance), indent=2))
    return path
