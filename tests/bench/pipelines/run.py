"""A small model that is fed in four ways; which of them, `input.pipeline` of the params file says.

compute: a map that computes. disk: files on a disk that all readers share, of this many bytes a
second. memory: arrays, as they are. sleep: a map that waits 2 ms a batch.
"""

import fcntl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from csrun import nn
from csrun.data import Batch, Dataset
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec
from csrun.params import Arguments, Mode, RunConfig, run

BATCH, FEATURES = 64, 256
SAMPLES = 8192
SLEEP_S = 0.002


class Input(msgspec.Struct, frozen=True):
    """pipeline: its name. disk_dir: files of the disk; disk_bytes_per_s: what all may read."""

    pipeline: str
    disk_dir: str = ""
    disk_bytes_per_s: float = 4e6


class Params(msgspec.Struct, frozen=True):
    """The params file."""

    input: Input
    runconfig: RunConfig


@dataclass(frozen=True)
class SlowDisk:
    """Files of float32 rows on a disk with one head: who reads, waits for its turn there."""

    folder: Path
    bytes_per_s: float
    rows_a_read: int = 64

    def samples(self, path: Path) -> Iterator[Batch]:
        """The rows of a file, and labels."""
        rows = np.load(path, mmap_mode="r")
        for start in range(0, len(rows), self.rows_a_read):
            read = np.array(rows[start : start + self.rows_a_read])
            self._wait_for(read.nbytes / self.bytes_per_s)
            yield from ((row, np.int32(0)) for row in read)

    def _wait_for(self, seconds: float) -> None:
        with (self.folder / "head").open("a") as head:
            fcntl.flock(head, fcntl.LOCK_EX)
            time.sleep(seconds)


def arrays() -> Dataset:
    """Endless shuffled batches, in memory."""
    random = np.random.default_rng(1)
    x = random.random((SAMPLES, FEATURES), np.float32)
    y = random.integers(0, 10, SAMPLES, np.int32)
    return Dataset.from_arrays(x, y).shuffle(1).repeat().batch(BATCH)


def compute(x: np.ndarray, y: np.ndarray) -> Batch:
    """Work for a CPU: the features of a frequency domain, some times over."""
    for _ in range(40):
        x = np.tanh(np.fft.irfft(np.fft.rfft(x), FEATURES)).astype(np.float32)
    return x, y


def sleep(x: np.ndarray, y: np.ndarray) -> Batch:
    """As long as 2 ms a batch."""
    time.sleep(SLEEP_S)
    return x, y


def input_fn(params: Params) -> Dataset:
    """The pipeline that the params file names."""
    options = params.input
    match options.pipeline:
        case "compute":
            return arrays().map(compute)
        case "sleep":
            return arrays().map(sleep)
        case "memory":
            return arrays()
        case "disk":
            disk = SlowDisk(Path(options.disk_dir), options.disk_bytes_per_s)
            files = Dataset.from_files(f"{options.disk_dir}/*.npy", disk).shard_files()
            return files.repeat().batch(BATCH)
    raise ValueError(f"input.pipeline: {options.pipeline} is not known")


def model_fn(features, labels, mode, params) -> CSEstimatorSpec:
    """Three layers."""
    hidden = nn.Dense(128, activation="relu", name="first")(features)
    hidden = nn.Dense(128, activation="relu", name="second")(hidden)
    loss = nn.softmax_cross_entropy(nn.Dense(10, name="out")(hidden), labels)
    return CSEstimatorSpec(mode=mode, loss=loss, train_op=nn.SGD(0.01).minimize(loss))


def main(arguments: Arguments[Params]) -> None:
    """Train, or compile."""
    config = arguments.params.runconfig
    estimator = CerebrasEstimator(model_fn, config.model_dir, config, arguments.params)
    if arguments.mode is Mode.TRAIN:
        estimator.train(input_fn, config.steps, config.max_steps)
    else:
        estimator.compile(input_fn)


if __name__ == "__main__":
    run(main, Params, Path("params.yaml"))
