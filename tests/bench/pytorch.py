"""A PyTorch loop on csrun, compared with plain PyTorch and with csrun's own front end.

Every side is a whole run as a user starts it, which reports its own steps per second, without
compile, start and first steps. PyTorch runs with its default number of threads and with one;
`cerebras_torch` is then a module whose lines do nothing. The target is relative to the faster of
both. The loop's own cost is the processor time of the chief's thread, which computes no step.
"""

import os
import re
import statistics
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
SECONDS = 2.0  # of each run's steps
MOST_APART = 10  # steps between two looks at PyTorch's loss, which is there, and at the clock
LIMIT_US = 50.0
BINARIES = Path(sys.executable).parent
PIPELINED, STREAMING = "pipelined", "streaming"
COMMANDS = {  # three streamers each
    PIPELINED: ("csrun_wse", "--total-nodes=2", "--tasks-per-node=2", "python-pt"),
    STREAMING: ("csrun_wse", "--total-nodes=3", "--tasks-per-node=3", "python-ws"),
}
EAGER, ONE_THREAD = "PyTorch", "PyTorch, one thread"
NATIVE = "csrun's own front end"
LOGGED = re.compile(r"global_step = (\d+), .*GlobalRate=([\d.]+)")


@dataclass(frozen=True)
class Workload:
    """A model of reference_models.

    every: steps between two reads of the loss. native_steps: of csrun's own front end, of which
    it logs ten times; 0 where it is not asked. over_eager, over_native: targets.
    """

    name: str
    model: str
    loader: str
    every: int
    modes: tuple[str, ...] = (PIPELINED,)
    native_steps: int = 0
    over_eager: float | None = None
    over_native: float | None = None
    tells_cost: bool = False


BOTH = (PIPELINED, STREAMING)
WORKLOADS = (
    Workload(
        "fc_mnist, loss every 50", "fc_mnist", "samples", 50, BOTH, over_eager=1.2, tells_cost=True
    ),
    Workload("fc_mnist, loss each step", "fc_mnist", "samples", 1, BOTH, over_eager=0.9),
    Workload(
        "fc_mnist, batches ready", "fc_mnist", "batches", 50, native_steps=2000, over_native=0.9
    ),
    Workload("GPT, 4 layers of 128", "gpt2", "samples", 10, native_steps=60, over_native=0.9),
    Workload("BERT, 4 layers of 128", "bert", "samples", 10, native_steps=60, over_native=0.9),
)  # fmt: skip


def bench(workload: Workload, folder: Path) -> None:
    """Measure all sides of a workload in turn, and print their medians."""
    params = configured(workload, folder)
    costs: list[float] = []
    plain = {"PYTHONPATH": str(PLAIN)}
    python = (sys.executable,)
    sides: dict[str, Callable[[], float]] = {
        mode: partial(loop, workload, params, COMMANDS[mode], {}, costs) for mode in workload.modes
    }
    sides[EAGER] = partial(loop, workload, params, python, plain)
    sides[ONE_THREAD] = partial(loop, workload, params, python, plain | {"OMP_NUM_THREADS": "1"})
    if workload.native_steps:
        sides[NATIVE] = partial(native, workload, params)
    medians = interleaved(sides, ROUNDS)
    eager = max((EAGER, ONE_THREAD), key=lambda side: medians[side])
    for side, value in medians.items():
        wanted = workload.over_eager if side in workload.modes else None
        print_result(workload, side, value, eager, medians[eager], wanted)
    if workload.native_steps:
        ours, theirs = medians[PIPELINED], medians[NATIVE]
        print_result(workload, PIPELINED, ours, NATIVE, theirs, workload.over_native)
    if workload.tells_cost:
        cost = statistics.median(costs)
        Result(
            "pytorch", workload.name, "the loop itself", "µs of CPU a step", cost,
            f"the limit, {LIMIT_US:g} µs", cost / LIMIT_US, ROUNDS, at_most=1.0,
        ).print()  # fmt: skip


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
    if workload.native_steps:
        params["runconfig"]["log_steps"] = workload.native_steps // 10
    path = folder / f"{workload.model}.yaml"
    path.write_text(yaml.safe_dump(params))
    return path


def loop(
    workload: Workload,
    params: Path,
    command: tuple[str, ...],
    variables: Mapping[str, str],
    costs: list[float] | None = None,
) -> float:
    """Steps per second of the loop, as it reports them; its own cost goes to `costs`."""
    every = min(workload.every, MOST_APART) if variables else workload.every
    words = (workload.model, params, workload.loader, str(SECONDS), str(every))
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        said = started((*command, BENCH / "pytorch_loop.py", *words), folder, variables)
    found = {name: float(value) for name, value in re.findall(r"^(\w+/\w+) (\S+)$", said, re.M)}
    if costs is not None:
        costs.append(found["us/step"])
    return found["steps/s"]


def native(workload: Workload, params: Path) -> float:
    """Steps per second of the model's run.py, from its first line of a tenth of its steps on."""
    script = MODELS / workload.model / "run.py"
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as folder:
        steps = ("--max_steps", str(workload.native_steps))
        words = ("--params", params, *steps, "--model_dir", "model_dir")
        said = started((*COMMANDS[PIPELINED][:-1], "python", script, *words), folder, {})
    batch = yaml.safe_load(params.read_text())["train_input"]["batch_size"]
    times = {int(step): int(step) * batch / float(rate) for step, rate in LOGGED.findall(said)}
    first, last = sorted(times)[1], max(times)  # the very first step is logged, too
    return (last - first) / (times[last] - times[first])


def started(command: tuple[object, ...], folder: str, variables: Mapping[str, str]) -> str:
    """What a command prints, in a separate folder."""
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
