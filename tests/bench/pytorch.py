"""A user's PyTorch loop on csrun beside the same loop in PyTorch, and beside csrun's own front end.

Every side is a whole run as a user starts it, which tells its own steps a second, without compile
and start. PyTorch runs with its default number of threads and with one; `cerebras_torch` is then a
module whose lines do nothing. What is promised is against the faster of both.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml
from result import Result, interleaved

BENCH = Path(__file__).parent
PLAIN = BENCH.parent / "support" / "plain_torch"
MODELS = BENCH.parents[1] / "reference_models"
ROUNDS = 3
BINARIES = Path(sys.executable).parent
PIPELINED = ("csrun_wse", "--total-nodes=2", "--tasks-per-node=1", "python-pt")
STREAMING = ("csrun_wse", "--total-nodes=3", "--tasks-per-node=1", "python-ws")
EAGER, ONE_THREAD = "PyTorch", "PyTorch, one thread"
NATIVE = "csrun's own front end"


@dataclass(frozen=True)
class Workload:
    """A model of reference_models, and how many steps of it take a second or two.

    every: the loss is read each so many steps. over_eager, over_native: promised.
    """

    name: str
    model: str
    loader: str
    steps: int
    every: int
    over_eager: float | None = None
    over_native: float | None = None


WORKLOADS = (
    Workload("fc_mnist, loss every 50", "fc_mnist", "samples", 500, 50, 1.2),
    Workload("fc_mnist, loss each step", "fc_mnist", "samples", 500, 1, 0.9),
    Workload("fc_mnist, batches ready", "fc_mnist", "batches", 1000, 50, None, 0.9),
    Workload("GPT, 4 layers of 128", "gpt2", "samples", 40, 50, None, 0.9),
    Workload("BERT, 4 layers of 128", "bert", "samples", 40, 50, None, 0.9),
)


def bench(workload: Workload, folder: Path) -> None:
    """Measure all sides of a workload in turn, and print their medians."""
    params = configured(workload, folder)
    sides: dict[str, Callable[[], float]] = {
        "pipelined": partial(loop, workload, params, PIPELINED),
        "streaming": partial(loop, workload, params, STREAMING),
        "in one process": partial(loop, workload, params, (sys.executable,)),
        EAGER: partial(loop, workload, params, (sys.executable,), {"PYTHONPATH": str(PLAIN)}),
        ONE_THREAD: partial(
            loop, workload, params, (sys.executable,),
            {"PYTHONPATH": str(PLAIN), "OMP_NUM_THREADS": "1"},
        ),
        NATIVE: partial(native, workload, params),
    }  # fmt: skip
    medians = interleaved(sides, ROUNDS)
    eager = max((EAGER, ONE_THREAD), key=lambda side: medians[side])
    for side, value in medians.items():
        wanted = workload.over_eager if side in ("pipelined", "streaming") else None
        print_result(workload, side, value, eager, medians[eager], wanted)
    pipelined = medians["pipelined"]
    print_result(workload, "pipelined", pipelined, NATIVE, medians[NATIVE], workload.over_native)


def print_result(
    workload: Workload, side: str, value: float, baseline: str, beside: float, wanted: float | None
) -> None:
    Result(
        "pytorch", workload.name, side, "steps/s", value, baseline, value / beside, ROUNDS, wanted
    ).print()


def configured(workload: Workload, folder: Path) -> Path:
    """The model's own params file, over the text of the standard library."""
    params = yaml.safe_load((MODELS / workload.model / "configs" / "params.yaml").read_text())
    for section in ("train_input", "eval_input"):
        if "file" in params[section]:
            params[section]["file"] = str(folder / Path(params[section]["file"]).name)
    path = folder / f"{workload.model}.yaml"
    path.write_text(yaml.safe_dump(params))
    return path


def loop(
    workload: Workload,
    params: Path,
    command: tuple[str, ...],
    variables: Mapping[str, str] = {},
) -> float:
    """Steps a second of the loop, as it says itself."""
    words = (workload.model, params, workload.loader, str(workload.steps), str(workload.every))
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        done = started((*command, BENCH / "pytorch_loop.py", *words), folder, variables)
    (line,) = (line for line in done.splitlines() if line.startswith("steps/s "))
    return float(line.split()[1])


def native(workload: Workload, params: Path) -> float:
    """Steps a second of the model's run.py, from its performance.json."""
    script = MODELS / workload.model / "run.py"
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        words = ("--params", params, "--max_steps", str(workload.steps), "--model_dir", "model_dir")
        started((*PIPELINED[:-1], "python", script, *words), folder, {})
        found = json.loads(Path(folder, "model_dir/performance/performance.json").read_text())
    return workload.steps / float(found["total_time"])


def started(command: tuple[object, ...], folder: str, variables: Mapping[str, str]) -> str:
    """What a command prints, in a folder of its own."""
    path = f"{BINARIES}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "CSRUN_STATE_DIR": f"{folder}/state", **variables}
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    chosen = [each for each in WORKLOADS if not sys.argv[1:] or each.model in sys.argv[1:]]
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as made:
        text = (sys.executable, MODELS / "gpt2" / "prepare_data.py", "--out", made)
        started(text, made, {})
        for each in chosen:
            bench(each, Path(made))
