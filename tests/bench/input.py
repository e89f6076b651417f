"""Input pipelines: streamer and torch DataLoader, ring and copies, predictions and measured rates.

A streamer is a process that fills its ring as in a job; here the reader discards the batches. The
DataLoader has as many workers, and default settings. A copy is `np.copyto` between arrays that are
larger than the caches.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from result import Result, interleaved

from csrun.data import Dataset, formats
from csrun.data.indexed import Range
from csrun.data.ops.shuffle import ShuffleOrder
from csrun.executable import InputSpec
from csrun.runtime.roles import streamer
from csrun.runtime.step.source import RingSource
from csrun.runtime.wire.channel import channel_pair
from csrun.runtime.wire.messages import Primed, RingReady, StartStreaming, Stop
from csrun.runtime.wire.ring import RingReader

ROUNDS = 5
ANALYSES = 3  # of each pipeline, and as many verifications
SECONDS = 1.0
SLOTS = 8
OVER_DATALOADER = 2.0  # promised
OVER_COPY = 0.5  # promised
PREDICTED_WITHIN = 0.2  # promised
BOUND = 0.2  # of a step's time, from which on a run is bound by its input
SHUFFLED, SHUFFLED_BATCH = 10**7, 1024
IMAGES, TOKENS, LENGTH = 60_000, 20_000_000, 1024
PIPELINES = Path(__file__).with_name("pipelines")
DISK_FILES, DISK_ROWS = 64, 2048
TASKS = "--tasks-per-node"


@contextmanager
def streamed(dataset: Dataset, inputs: tuple[InputSpec, ...]) -> Iterator[RingSource]:
    """The batches of a streamer in a separate process."""
    chief, control = channel_pair("streamer", "chief")
    pid = os.fork()
    if not pid:
        chief.close()
        streamer.serve(control, [dataset])
        os._exit(0)
    control.close()
    try:
        chief.send(StartStreaming(inputs, 0, 1, None, SLOTS))
        _, (memory, filled, free) = chief.expect(RingReady, 3)
        with closing(RingReader((memory, filled, free), inputs, SLOTS, chief)) as reader:
            chief.expect(Primed)
            yield RingSource([reader], 0)
            chief.send(Stop({}))
    finally:
        os.waitpid(pid, 0)
        chief.close()


def batches_per_second(take: Callable[[], object]) -> float:
    """How many batches can be taken in a second, once it runs."""
    for _ in range(2 * SLOTS):
        take()
    taken, started = 0, time.perf_counter()
    while time.perf_counter() - started < SECONDS:
        take()
        taken += 1
    return taken / (time.perf_counter() - started)


def of_streamer(dataset: Dataset, inputs: tuple[InputSpec, ...]) -> float:
    """Batches per second through the ring."""
    with streamed(dataset, inputs) as source:

        def take() -> None:
            source.take()
            source.release()

        return batches_per_second(take)


def of_loader(dataset: Any, batch: int) -> float:
    """Batches per second of a torch DataLoader with one worker."""
    loader = torch.utils.data.DataLoader(dataset, batch, shuffle=True, num_workers=1)
    batches = cycle(iter(lambda: loader, None))
    current = iter(next(batches))

    def take() -> None:
        nonlocal current
        if next(current, None) is None:
            current = iter(next(batches))

    return batches_per_second(take)


class TokenWindows(torch.utils.data.Dataset):
    """Windows of a memory-mapped file of tokens, as nanoGPT reads them."""

    def __init__(self, path: Path) -> None:
        self.tokens = np.memmap(path, np.uint16, "r")

    def __len__(self) -> int:
        return len(self.tokens) // LENGTH - 1

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.tokens[index * LENGTH : (index + 1) * LENGTH + 1].astype(np.int64)
        return torch.from_numpy(window[:-1]), torch.from_numpy(window[1:])


def beside_loader(
    workload: str, dataset: Dataset, inputs: tuple[InputSpec, ...], peer: Any, batch: int
) -> None:
    """One streamer compared with one worker."""
    sides = {
        "one streamer": lambda: of_streamer(dataset, inputs),
        "torch DataLoader": lambda: of_loader(peer, batch),
    }
    medians = interleaved(sides, ROUNDS)
    ours, theirs = medians.values()
    Result(
        "input", workload, "one streamer", "batches/s", ours, "torch DataLoader", ours / theirs,
        ROUNDS, at_least=OVER_DATALOADER,
    ).print()  # fmt: skip


def bench_images() -> None:
    """FC-MNIST's arrays."""
    random = np.random.default_rng(1)
    x = random.random((IMAGES, 28, 28), np.float32)
    y = random.integers(0, 10, IMAGES, np.int32)
    inputs = InputSpec("features", (128, 28, 28), "float32"), InputSpec("labels", (128,), "int32")
    peer = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    dataset = Dataset.from_arrays(x, y).shuffle(1).repeat().batch(128)
    beside_loader("arrays in memory, 128 x 784", dataset, inputs, peer, 128)


def bench_shuffle() -> None:
    """The positions of a batch, computed, compared with a permutation that is held as a list."""
    held = np.random.default_rng(1).permutation(SHUFFLED)
    computed = ShuffleOrder(Range(SHUFFLED), 1)
    starts = np.random.default_rng(2).integers(SHUFFLED - SHUFFLED_BATCH, size=1000).tolist()

    def per_index(at: Callable[[npt.NDArray[np.int64]], object]) -> float:
        started = time.perf_counter()
        for start in starts:
            at(np.arange(start, start + SHUFFLED_BATCH))
        return (time.perf_counter() - started) / len(starts) / SHUFFLED_BATCH * 1e9

    def drawn_anew() -> float:
        started = time.perf_counter()
        np.random.default_rng(1).permutation(SHUFFLED)
        return (time.perf_counter() - started) / SHUFFLED * 1e9

    medians = interleaved(
        {
            "computed": lambda: per_index(lambda at: computed.at(0, at)),
            "held": lambda: per_index(lambda at: held[at]),
            "drawn each pass": drawn_anew,
        },
        ROUNDS,
    )
    for side, value in medians.items():
        ratio = value / medians["held"]
        Result("input", "shuffle", side, "ns/index", value, "held", ratio, ROUNDS).print()


def bench_tokens(folder: Path) -> None:
    """GPT's windows of tokens, of int32 as a model takes them."""
    path = folder / "tokens.bin"
    np.random.default_rng(1).integers(0, 50_000, TOKENS).astype(np.uint16).tofile(path)
    inputs = tuple(InputSpec(name, (64, LENGTH), "int32") for name in ("features", "labels"))
    dataset = Dataset.from_files(path, formats.Tokens(LENGTH)).shuffle(1).repeat().batch(64)
    beside_loader("mapped tokens, 64 x 1024", dataset, inputs, TokenWindows(path), 64)
    path.unlink()


def bench_copy() -> None:
    """Batches as large as memory's bandwidth is felt."""
    rows, width = 256, 1 << 16
    x = np.zeros((8 * rows, width), np.float32)
    x += 1  # pages of its own
    nbytes = rows * width * 4
    inputs = (InputSpec("features", (rows, width), "float32"),)
    dataset = Dataset.from_arrays(x).repeat().batch(rows)
    target = np.zeros((rows, width), np.float32)
    place = cycle(range(8))

    def copy() -> None:
        start = next(place) * rows
        np.copyto(target, x[start : start + rows])

    sides = {
        "one streamer": lambda: of_streamer(dataset, inputs) * nbytes / 1e9,
        "np.copyto": lambda: batches_per_second(copy) * nbytes / 1e9,
    }
    ours, plain = interleaved(sides, ROUNDS).values()
    Result(
        "input", "64 MiB a batch", "one streamer", "GB/s", ours, "np.copyto", ours / plain, ROUNDS,
        at_least=OVER_COPY,
    ).print()  # fmt: skip


def prepare(folder: Path, pipeline: str) -> Path:
    """A working folder with the script, its params and the disk's files."""
    place = folder / pipeline
    shutil.copytree(PIPELINES, place)
    disk = place / "disk"
    disk.mkdir()
    if pipeline == "disk":
        for number in range(DISK_FILES):
            np.save(disk / f"{number:02}.npy", np.ones((DISK_ROWS, 256), np.float32))
    (place / "params.yaml").write_text(
        f"input:\n  pipeline: {pipeline}\n  disk_dir: {disk}\nrunconfig:\n  max_steps: 2000\n"
    )
    return place


def run(place: Path, *command: str) -> str:
    """A command's standard output."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "CSRUN_STATE_DIR": str(place / "state")}
    done = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def bench_prediction(folder: Path, pipeline: str) -> None:
    """Print the predicted rate of the recommended layout, compared with the measured rate."""
    place = prepare(folder, pipeline)
    command = ("python-ws", "run.py", "--compile_only")
    found: list[tuple[float, float]] = []
    for _ in range(ANALYSES):
        analysis = json.loads(run(place, "cs_input_analyzer", "--verify", "--json", *command))
        verified = analysis["verified"]
        predicted, fed = verified["layout"]["samples_per_s"], verified["fed"]["samples_per_s"]
        found.append((predicted / fed, predicted))
    ratio, predicted = sorted(found)[ANALYSES // 2]
    Result(
        "input", f"pipeline of {pipeline}", "predicted", "samples/s", predicted, "delivered", ratio,
        ANALYSES, at_least=1 - PREDICTED_WITHIN, at_most=1 + PREDICTED_WITHIN,
    ).print()  # fmt: skip


def bench_sleep(folder: Path) -> None:
    """A map that sleeps is found, and the recommended layout feeds what one task does not."""
    place = prepare(folder, "sleep")
    command = ("python-ws", "run.py", "--compile_only")
    analysis = json.loads(run(place, "cs_input_analyzer", "--json", *command))
    if analysis["limiting"]["stage"]["name"] != "map sleep":
        raise SystemExit(f"the limiting stage is map sleep, found {analysis['limiting']}")
    one = list(analysis["launch"])
    one[one.index(TASKS) + 1] = "1"
    shares = {}
    for name, launch in (("one task", one), ("recommended", analysis["launch"])):
        shutil.rmtree(place / "model_dir", ignore_errors=True)
        run(place, *launch)
        performance = json.loads((place / "model_dir/performance/performance.json").read_text())
        shares[name] = performance["input"]["wait_share"]
    wanted = {"one task": {"at_least": 1.0}, "recommended": {"at_most": 1.0}}
    for name, share in shares.items():
        Result(
            "input", "pipeline of sleep", f"waits for {name}", "of the step", share,
            "limit, 0.2", share / BOUND, 1, **wanted[name],
        ).print()  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as name:
        bench_images()
        bench_shuffle()
        bench_tokens(Path(name))
        bench_copy()
        for chosen in ("compute", "disk", "memory"):
            bench_prediction(Path(name), chosen)
        bench_sleep(Path(name))
