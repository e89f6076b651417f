"""One run of a case's script: in plain PyTorch, or on csrun in one of the three ways of running."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import IO, Any

import sources
from case import Case, Package

BENCH = Path(__file__).resolve().parent
PLAIN = BENCH.parents[1] / "support" / "plain_torch"
CHECKOUT = BENCH.parents[2]
TIMED_OUT = 124
LIMIT_S = 300


class Side(Enum):
    """Commands that run the script."""

    PLAIN = "PyTorch"
    PYTHON = "python"
    PIPELINED = "python-pt"
    STREAMING = "python-ws"


JOBS = {
    # not csrun_cpu, which leaves PYTHONPATH out, as the container of the original does
    Side.PIPELINED: ("csrun_wse", "--total-nodes=3", "--tasks-per-node=2", "python-pt"),
    Side.STREAMING: ("csrun_wse", "--total-nodes=3", "--tasks-per-node=2", "python-ws"),
}


@dataclass(frozen=True)
class Finished:
    """Exit code, output and what the recorder wrote, of one run.

    recorded: steps that csrun recorded after the first ones; None if it wrote no performance.json
    """

    code: int
    errors: str
    losses: list[float] = field(default_factory=list)
    steps_per_s: float | None = None
    weights: Path | None = None
    recorded: int | None = None


class Runner:
    """Runs scripts in forks of one process; jobs are started as a user does."""

    def __init__(self, steps: int, threads: int, limit_s: int = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._environment = {
            "CSRUN_BENCH_STEPS": str(steps),
            "OMP_NUM_THREADS": str(threads),
            "TQDM_DISABLE": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONHASHSEED": "0",  # the same order of sets in all processes
            "PYTHONPATH": str(sources.packages_folder()),
        }
        command = [sys.executable, str(BENCH / "preloaded.py")]
        self._server = subprocess.Popen(
            command, env={**os.environ, **self._environment}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *error: object) -> None:
        _pipe(self._server.stdin).close()
        self._server.wait()
        _pipe(self._server.stdout).close()

    def run(
        self, case: Case, side: Side, folder: Path, dtype: str = "float32", noise: str = ""
    ) -> Finished:
        """Run the case's script in a new folder. Raises NotAvailableError.

        noise: seed of the rounding errors that initial weights get, in plain PyTorch.
        """
        folder.mkdir(parents=True)
        (folder / "result").mkdir()
        script = write_script(case, folder)
        environment = {
            "CSRUN_BENCH_RESULT": str(folder / "result"),
            "CSRUN_STATE_DIR": str(folder / "state"),
            "CSRUN_BENCH_DTYPE": dtype,
            "PLAIN_TORCH_NOISE": noise,
        }
        arguments = [str(script), *case.arguments]
        path = [str(script.parent), str(folder), str(BENCH / "loops")]
        if not isinstance(case.source, Package) or "timm" in case.requirements:
            path.append(str(BENCH / "stand_ins"))
        path.append(str(sources.packages_folder()))
        path.append(str(PLAIN if side is Side.PLAIN else CHECKOUT))
        if side in JOBS:
            code = self._start_job(JOBS[side], arguments, folder, path, environment)
        else:
            code = self._fork(arguments, folder, path, environment)
        return read_result(code, folder)

    def _fork(
        self, arguments: list[str], folder: Path, path: list[str], environment: dict[str, str]
    ) -> int:
        request: dict[str, Any] = {"folder": str(folder), "arguments": arguments, "path": path}
        request |= {"environment": environment, "limit_s": self._limit_s}
        _pipe(self._server.stdin).write(json.dumps(request) + "\n")
        _pipe(self._server.stdin).flush()
        return int(_pipe(self._server.stdout).readline())

    def _start_job(
        self, command: tuple[str, ...], arguments: list[str], folder: Path, path: list[str],
        environment: dict[str, str],
    ) -> int:  # fmt: skip
        variables = {**os.environ, **self._environment, **environment}
        variables["PYTHONPATH"] = os.pathsep.join(path)
        binary = Path(sys.executable).parent / command[0]
        with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as errors:
            try:
                return subprocess.run(
                    [str(binary), *command[1:], *arguments], cwd=folder, env=variables,
                    stdout=out, stderr=errors, timeout=self._limit_s,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                return TIMED_OUT


def write_script(case: Case, folder: Path) -> Path:
    """Copy the script and the files that it imports, with the patches applied."""
    if isinstance(case.source, Package):
        return BENCH / case.script
    for path in case.source.paths:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        content = sources.read(case.source, path)
        if patches := case.patches.get(path, ()):
            text = content.decode()
            for patch in patches:
                text = patch.apply(text)
            content = text.encode()
        target.write_bytes(content)
    script = BENCH / case.script
    return script if script.exists() else folder / case.script


def read_result(code: int, folder: Path) -> Finished:
    errors = (folder / "stderr").read_text(errors="replace")
    path = folder / "result" / "result.json"
    if not path.exists():
        return Finished(code, errors)
    found = json.loads(path.read_text())
    weights = folder / "result" / "weights.pt"
    losses, rate = found["losses"], found["steps_per_s"]
    return Finished(code, errors, losses, rate, weights, recorded_steps(folder))


def recorded_steps(folder: Path) -> int | None:
    """Steps that a run in this folder recorded after the first ones, by its performance.json."""
    for path in folder.rglob("performance/performance.json"):
        return sum(json.loads(path.read_text())["recorded_steps"].values())
    return None


def first_error(errors: str) -> str:
    """The line that says why a run ended: csrun's own, else the exception of a traceback."""
    lines = [line for each in errors.splitlines() if (line := without_folders(each).strip())]
    own = [line for line in lines if re.match(r"(\S+: )?error: ", line)]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return (own or raised or lines or ["no message"])[0 if own else -1]


def without_folders(line: str) -> str:
    """A line of output without colours, and with paths from the script's or package's folder on."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
    folders = r"/\S*/site-packages/", r"/\S*/csrun-bench-[^/]+/case/[^/]+/"
    return re.sub("|".join(folders), "", plain)


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
