"""Performance of a run: the two rates in its log lines, and performance.json."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import msgspec

from csrun.base.files import find, write_atomic, writing
from csrun.base.open_folder import open_folder
from csrun.records.ledger import LedgerRow

FOLDER = "performance"
SMOOTHING = 0.4  # of Rate; source: the original's tracker, new = (1 - 0.4)·local + 0.4·old


@dataclass(frozen=True)
class Rates:
    """Rates in samples per second. rate: smoothed over logging steps; global_rate: since the
    load.
    """

    rate: float
    global_rate: float


class RateTracker:
    """Counts samples since its creation, which is when the executable was loaded."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._loaded = self._last_time = clock()
        self._samples = self._last_samples = 0
        self._rate: float | None = None

    def received(self, samples: int) -> None:
        """Set the total number of samples whose outputs have been received."""
        self._samples = samples

    def exclude_pause(self, seconds: float) -> None:
        """Exclude a time without steps from the rates."""
        self._loaded += seconds
        self._last_time += seconds

    def log(self) -> Rates:
        """Return the rates at a logging step."""
        now = self._clock()
        local = _per_second(self._samples - self._last_samples, now - self._last_time)
        if self._rate is None:
            self._rate = local
        else:
            self._rate = (1 - SMOOTHING) * local + SMOOTHING * self._rate
        self._last_time, self._last_samples = now, self._samples
        return Rates(self._rate, _per_second(self._samples, now - self._loaded))


def _per_second(samples: int, seconds: float) -> float:
    return samples / seconds if seconds > 0 else 0.0


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Effect of the input on the steps.

    verdict: not bound (they waited less than 5 % of their time for batches), moderate (to 20 %) or
        bound.
    streamers_needed: number of streamers that would suffice; None if each makes all batches, since
        then no number would.
    slowest_stage: of the pipeline.
    """

    verdict: str = "not bound"
    wait_share: float = 0.0
    streamers: int = 0
    streamers_needed: int | None = 0
    slowest_stage: str | None = None

    @property
    def is_bottleneck(self) -> bool:
        """Return whether the input limited the run."""
        return self.verdict == "bound"


class Performance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Performance of a run. Units: times in seconds, rates in samples per second.

    num_csx: number of CS systems that shared each batch; rates count all samples.
    est_samples_per_sec: the compiler's estimate of the rate.
    programming_time: time to load the executable.
    step_time: mean time of a step without waits for batches.
    estimated_step_time: the same from `csrun estimate`, None without it.
    suspected_input_bottleneck: whether `input`'s verdict is bound.
    ledger: breakdown of the time.
    synchronizations: how often each line of a PyTorch script waited for steps.
    recorded_steps: how many of its steps were recorded after the first ones, by cause.
    """

    compile_time: float
    est_samples_per_sec: float
    programming_time: float
    samples_per_sec: float
    suspected_input_bottleneck: bool
    total_samples: int
    total_time: float
    input: Input = Input()
    ledger: tuple[LedgerRow, ...] = ()
    step_time: float = 0.0
    estimated_step_time: float | None = None
    num_csx: int = 1
    synchronizations: dict[str, int] = {}
    recorded_steps: dict[str, int] = {}


def path_of(model_dir: Path) -> Path:
    """Return the path of the file in a model_dir."""
    return model_dir / FOLDER / "performance.json"


def read(model_dir: Path) -> Performance | None:
    """Read the file; None if it is missing or invalid."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(find(path_of(model_dir)).data, type=Performance)
    return None


def write(model_dir: Path, performance: Performance) -> Path:
    """Write the file, and return its path."""
    path = path_of(model_dir)
    text = msgspec.json.format(msgspec.json.encode(performance), indent=2) + b"\n"
    with writing(path), open_folder(path.parent) as folder:
        write_atomic(folder / path.name, text)
    return path
