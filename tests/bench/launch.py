"""Start time of 98 tasks, compared with torchrun and bare interpreters, and their resources."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from processes import cpu_seconds, family, pss_mb
from result import Result, interleaved

TASKS = 98
LAYOUT = ("--total-nodes", "14", "--single-task-nodes", "2", "--tasks-per-node", "8",
          "--cpus-per-task", "16")  # 2 + 12 x 8 = 98  # fmt: skip
FC_MNIST = Path(__file__).parents[2] / "reference_models" / "fc_mnist" / "run.py"
BINARIES = Path(sys.executable).parent
ROUNDS = 5
POLL_S = 0.002
STALL_S = 120.0
WATCH_S = 5.0
LAUNCH_LIMIT_S = 2.0
MEMORY_LIMIT_MB = 3 * 1024
WAITING_LIMIT = 5.0  # percent of a core
# What each of the processes does: it adds a byte to a file.
MARK = "import os, sys; f = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND); os.write(f, b'1')"
TORCH_MARK = f"{MARK}\nimport cerebras_torch"
#: All that a node imports for such a script: the last is what torch.optim asks for when it is used.
TORCH_IMPORT = "import cerebras_torch, torch._dynamo"
TORCH_OVER_NATIVE = 1.25  # of a native start and one import


def launch_times() -> list[Result]:
    """Seconds from the start of the command until the last task has said that it lives.

    The target counts from the launch line to the last report, before any script's imports.
    """
    sides = {
        "csrun_wse, launch line to all tasks started": _until_started,
        "csrun_wse, all in their first line": lambda: _until_marked(_csrun),
        "torchrun, all in their first line": lambda: _until_marked(_torchrun),
        "98 bare interpreters": lambda: _until_marked(_bare),
    }
    medians = interleaved(sides, ROUNDS)
    bare = medians["98 bare interpreters"]
    found = [
        Result("launch", "98 tasks start", side, "s", value, "98 bare interpreters", value / bare,
               ROUNDS)
        for side, value in medians.items()
    ]  # fmt: skip
    started = medians["csrun_wse, launch line to all tasks started"]
    found.append(_against_limit("98 tasks start", "s", started, LAUNCH_LIMIT_S, ROUNDS))
    return found


def torch_times() -> list[Result]:
    """Print the start time of a PyTorch job, compared with a native one and with one import."""
    torch, native, once = "python-pt", "without PyTorch", "one import"
    sides = {
        torch: lambda: _until_marked(_csrun_torch, TORCH_MARK),
        native: lambda: _until_marked(_csrun),
        once: _seconds_of_import,
    }
    medians = interleaved(sides, ROUNDS)
    least_s = medians[native] + medians[once]
    return [
        Result("launch", "98 tasks of a PyTorch script start", f"csrun_wse, {side}", "s",
               medians[side], f"{native} and {once}", medians[side] / least_s, ROUNDS,
               at_most=TORCH_OVER_NATIVE if side == torch else None)
        for side in (torch, native)
    ]  # fmt: skip


def _seconds_of_import() -> float:
    started_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", TORCH_IMPORT], check=True)
    return time.perf_counter() - started_s


def torch_memory() -> list[Result]:
    """Memory of all processes of a PyTorch job and of a streaming one, while fc_mnist trains."""
    found = []
    for interpreter in ("python-pt", "python-ws"):
        with tempfile.TemporaryDirectory() as folder:
            command = [*csrun_wse(interpreter), str(FC_MNIST.with_name("run_torch.py"))]
            with _training(Path(folder), command) as launcher:
                memory = pss_mb(family(launcher.pid))
        workload = f"98 tasks train fc_mnist in PyTorch, {interpreter}"
        found.append(_against_limit(workload, "MiB PSS", memory, MEMORY_LIMIT_MB, 1))
    return found


def resources() -> list[Result]:
    """Memory of all processes while fc_mnist trains, and CPU of 96 streamers that wait."""
    command = [*csrun_wse("python-ws"), str(FC_MNIST)]
    with tempfile.TemporaryDirectory() as folder, _training(Path(folder), command) as launcher:
        memory = pss_mb(family(launcher.pid))
        tasks = _pids_by_log(launcher.pid)
        streamers = [pid for name, pid in tasks.items() if name > "rank-00001" and name < "s"]
        os.kill(tasks["wafer-cs2-02"], signal.SIGSTOP)
        time.sleep(1)  # for the rings to be full
        before_s = cpu_seconds(streamers)
        time.sleep(WATCH_S)
        waiting = 100 * (cpu_seconds(streamers) - before_s) / WATCH_S
        os.kill(tasks["wafer-cs2-02"], signal.SIGCONT)
    return [
        _against_limit("98 tasks train fc_mnist", "MiB PSS", memory, MEMORY_LIMIT_MB, 1),
        _against_limit("96 streamers wait", "% of a core", waiting, WAITING_LIMIT, 1),
    ]


def _against_limit(workload: str, unit: str, value: float, limit: float, rounds: int) -> Result:
    baseline = f"the limit, {limit:g} {unit}"
    return Result(
        "launch", workload, "csrun_wse", unit, value, baseline, value / limit, rounds, at_most=1.0
    )


def _until_started() -> float:
    """From the launch line to the line that says that all tasks have started."""
    seen_s = {"Launching:": 0.0, "tasks started after": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        command = _csrun(Path(folder) / "script.py", Path(folder) / "marks")
        (Path(folder) / "script.py").write_text(MARK)
        (Path(folder) / "marks").touch()
        with subprocess.Popen(
            command, cwd=folder, env=_environment(folder), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as launcher:  # fmt: skip
            assert launcher.stdout is not None
            for line in launcher.stdout:
                for words in seen_s:
                    if words in line:
                        seen_s[words] = time.perf_counter()
            launcher.wait()
    return seen_s["tasks started after"] - seen_s["Launching:"]


def _until_marked(command: Callable[[Path, Path], list[str]], text: str = MARK) -> float:
    with tempfile.TemporaryDirectory() as folder:
        script, marks = Path(folder) / "script.py", Path(folder) / "marks"
        script.write_text(text)
        marks.touch()
        started_s = time.perf_counter()
        with subprocess.Popen(
            command(script, marks), cwd=folder, env=_environment(folder),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as launcher:  # fmt: skip
            while marks.stat().st_size < TASKS:
                time.sleep(POLL_S)
                if time.perf_counter() - started_s > STALL_S:
                    raise TimeoutError(f"{command.__name__}: not all tasks came to life")
            taken_s = time.perf_counter() - started_s
            launcher.wait()
    return taken_s


def _csrun(script: Path, marks: Path) -> list[str]:
    return [*csrun_wse("python-ws"), str(script), str(marks)]


def _csrun_torch(script: Path, marks: Path) -> list[str]:
    return [*csrun_wse("python-pt"), str(script), str(marks)]


def csrun_wse(interpreter: str) -> list[str]:
    """The launcher, up to the script."""
    return [str(BINARIES / "csrun_wse"), *LAYOUT, interpreter]


def _torchrun(script: Path, marks: Path) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(TASKS)]
    return [*torchrun, str(script), str(marks)]


def _bare(script: Path, marks: Path) -> list[str]:
    start = f'for i in $(seq {TASKS}); do "$0" "$@" & done; wait'
    return ["sh", "-c", start, sys.executable, str(script), str(marks)]


@contextmanager
def _training(folder: Path, command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """A training in 98 tasks, from its first log line of a step."""
    with subprocess.Popen(
        [*command, "--max_steps", "9999999"],
        cwd=folder, env=_environment(str(folder)), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as launcher:  # fmt: skip
        assert launcher.stdout is not None
        next(line for line in launcher.stdout if "global_step = " in line)
        yield launcher
        launcher.send_signal(signal.SIGINT)
        launcher.communicate()


def _pids_by_log(launcher: int) -> dict[str, int]:
    found = {}
    for pid in family(launcher):
        target = Path(os.readlink(f"/proc/{pid}/fd/1"))
        if target.suffix == ".log":
            found[target.stem] = pid
    return found


def _environment(folder: str) -> dict[str, str]:
    return {**os.environ, "CSRUN_STATE_DIR": f"{folder}/state"}


if __name__ == "__main__":
    for result in (*launch_times(), *torch_times(), *resources(), *torch_memory()):
        result.print()
