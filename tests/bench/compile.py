"""Compile times: fc_mnist without the start of Python, CPU time of larger models."""

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml
from result import Result, interleaved

FOLDER = Path(__file__).parents[2] / "reference_models" / "fc_mnist"
START = "start of Python"
LIMITS_S = {"--validate_only": 1.0, "--compile_only": 3.0}
ROUNDS = 9
LAYERS = 1000
IMPORTS = "imports"
CACHED = "--compile_only, again"
DEEP_LIMITS_S = {"--validate_only": 4.0, "--compile_only": 6.0}
DEEP_ROUNDS = 3
NUMPY, MACHINE_CODE = "numpy", "llvm"
GPT_TOKENS, GPT_LIMIT = 100_000, 1.5


def compile_times() -> list[Result]:
    """Print each time compared with the start of Python, and the difference with its limit.

    Every round compiles into a separate folder: no compile is found there.
    """
    sides: dict[str, Callable[[], float]] = {START: lambda: _seconds([sys.executable, "-c", ""])}
    for option in LIMITS_S:
        command = [sys.executable, str(FOLDER / "run.py"), option]
        sides[option] = lambda command=command: _seconds(command)
    medians = interleaved(sides, ROUNDS)
    found = [
        Result("compile", "fc_mnist compiles", side, "s", value, START, value / medians[START],
               ROUNDS)
        for side, value in medians.items()
    ]  # fmt: skip
    for option, limit_s in LIMITS_S.items():
        beyond_s = medians[option] - medians[START]
        found.append(
            Result("compile", "fc_mnist compiles", f"{option}, beyond the start", "s", beyond_s,
                   f"the limit, {limit_s:g} s", beyond_s / limit_s, ROUNDS, at_most=1.0)
        )  # fmt: skip
    return found


def deep_compile_times() -> list[Result]:
    """Of 1,000 layers in weight streaming, whole commands: validated, compiled, found again."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = (FOLDER / "configs" / "params.yaml").read_text()
        sizes = f"hidden_sizes: {[50] * LAYERS}"
        params = folder / "params.yaml"
        params.write_text(re.sub(r"hidden_sizes: .*", sizes, text))
        imports = "import csrun.nn, csrun.data, csrun.params, csrun.estimator"
        sides = {IMPORTS: lambda: _cpu_seconds(["-c", imports], folder)}
        for option in DEEP_LIMITS_S:
            command = [str(FOLDER / "run.py"), "--params", str(params), option, "--model_dir"]
            sides[option] = lambda command=command: _cpu_seconds([*command, _new(folder)], folder)
        again = [*command, _new(folder)]
        _cpu_seconds(again, folder)
        sides[CACHED] = lambda: _cpu_seconds(again, folder)
        medians = interleaved(sides, DEEP_ROUNDS)
    workload = f"{LAYERS:,} layers compile"
    limits = {side: (f"the limit, {s:g} s", s) for side, s in DEEP_LIMITS_S.items()}
    found = []
    for side, value in medians.items():
        baseline, beside = limits.get(side, (IMPORTS, medians[IMPORTS]))
        found.append(
            Result("compile", workload, side, "s of CPU", value, baseline, value / beside,
                   DEEP_ROUNDS, at_most=1.0 if side in limits else None)
        )  # fmt: skip
    return found


def machine_code_times() -> list[Result]:
    """Print the time of compiling GPT-2 small, with machine code and NumPy kernels, uncached."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.bin").write_bytes(bytes(2 * GPT_TOKENS))
        model = FOLDER.parent / "gpt2"
        sides = {}
        for kernels in (NUMPY, MACHINE_CODE):
            params = yaml.safe_load((model / "configs" / "params_small.yaml").read_text())
            params["train_input"]["file"] = str(folder / "train.bin")
            params["runconfig"]["kernels"] = kernels
            path = folder / f"{kernels}.yaml"
            path.write_text(yaml.safe_dump(params))
            command = [str(model / "run.py"), "--params", str(path), "--compile_only"]
            sides[kernels] = lambda command=command: _cpu_seconds(
                [*command, "--model_dir", _new(folder)], Path(_new(folder))
            )
        medians = interleaved(sides, DEEP_ROUNDS)
    ratio = medians[MACHINE_CODE] / medians[NUMPY]
    return [
        Result("compile", "GPT-2 small compiles", f"kernels: {MACHINE_CODE}", "s of CPU",
               medians[MACHINE_CODE], f"kernels: {NUMPY}", ratio, DEEP_ROUNDS, at_most=GPT_LIMIT)
    ]  # fmt: skip


def _new(folder: Path) -> str:
    return tempfile.mkdtemp(dir=folder)


def _cpu_seconds(arguments: list[str], folder: Path) -> float:
    """Time that Python takes of all cores, as user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = {"CSRUN_STATE_DIR": f"{folder}/state", "XDG_CACHE_HOME": f"{folder}/cache"}
    environment = {**os.environ, **own}
    command = [sys.executable, *arguments]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _seconds(command: list[str]) -> float:
    """Wall time of a command in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "CSRUN_STATE_DIR": f"{folder}/state"}
        started_s = time.perf_counter()
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        return time.perf_counter() - started_s


if __name__ == "__main__":
    for result in compile_times() + deep_compile_times() + machine_code_times():
        result.print()
