"""The shipped fc_mnist as a user runs it: its commands, and the files in model_dir."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml
from support.event_files import events
from support.jobs import STALL_S, Sandbox, Started

FOLDER = Path(__file__).parents[2] / "reference_models" / "fc_mnist"
RUN = str(FOLDER / "run.py")
TWO_STREAMERS = ("--total-nodes", "3", "--tasks-per-node", "2", "--cpus-per-task", "1")
MANY_STEPS = 10**7  # more than any test waits for


class FcMnist(Sandbox):
    """A user's folder with `params.yaml` and `model_dir`."""

    @property
    def model_dir(self) -> Path:
        return self.path / "model_dir"

    def configure(self, **changes: Any) -> None:
        """Write params.yaml: the shipped one with changes such as `model__hidden_sizes=[5]`."""
        params = yaml.safe_load((FOLDER / "configs" / "params.yaml").read_text())
        for key, value in changes.items():
            section, name = key.split("__")
            params[section][name] = value
        (self.path / "params.yaml").write_text(yaml.safe_dump(params))

    def cpu(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run `python run.py`."""
        with self.start_cpu(*arguments) as process:
            out, err = process.communicate(timeout=STALL_S)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def start_cpu(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start `python run.py`."""
        return self.start_python(RUN, *self.own(arguments))

    def start_python(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a script in one process."""
        environment = {**os.environ, "CSRUN_STATE_DIR": str(self.path / "state")}
        return Started(
            [sys.executable, *arguments],
            cwd=self.path, env=environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def wse(
        self,
        *arguments: str,
        layout: tuple[str, ...] = TWO_STREAMERS,
        interpreter: str = "python-ws",
    ) -> "subprocess.CompletedProcess[str]":
        """Run `csrun_wse python-ws run.py`."""
        return self.run(*layout, interpreter, RUN, *self.own(arguments))

    def start_wse(
        self,
        *arguments: str,
        layout: tuple[str, ...] = TWO_STREAMERS,
        interpreter: str = "python-ws",
        script: str = RUN,
    ) -> "subprocess.Popen[str]":
        """Start `csrun_wse python-ws run.py`."""
        return self.start(*layout, interpreter, script, *self.own(arguments))

    def own(self, arguments: tuple[str, ...]) -> list[str]:
        """Arguments, with params.yaml if it exists."""
        has_params = (self.path / "params.yaml").exists() and "--params" not in arguments
        return [*(("--params", "params.yaml") if has_params else ()), *arguments]

    def copy(self, **texts: str) -> str:
        """Copy the user's files with other texts, e.g. model="…"; return the path of its run.py."""
        folder = self.path / "copy"
        folder.mkdir()
        for file in FOLDER.glob("*.py"):
            (folder / file.name).write_text(texts.pop(file.stem, file.read_text()))
        (folder / "configs").symlink_to(FOLDER / "configs")
        (folder / "data").symlink_to(FOLDER / "data")
        assert not texts
        return "copy/run.py"

    def slow_copy(self) -> str:
        """Write a copy of run.py that trains only 20 steps per second, to save CPU time."""
        head = "    def load(elements: np.ndarray) -> Batch:\n"
        text = (FOLDER / "data.py").read_text()
        assert head in text
        return self.copy(data=text.replace(head, f"{head}        __import__('time').sleep(0.05)\n"))

    def checkpoint(self, step: int, model_dir: str = "model_dir") -> Path:
        return self.path / model_dir / f"model-ckpt-{step}.safetensors"

    def processes(self, launcher: int) -> dict[str, int]:
        """Living processes of a job by name: the launcher, and others by their logs."""
        found = {"launcher": launcher}
        for server in psutil.Process(launcher).children():
            found["forkserver"] = server.pid
            for process in server.children(recursive=True):
                try:
                    log = Path(os.readlink(f"/proc/{process.pid}/fd/1")).stem
                except OSError:
                    continue
                found.setdefault(log, process.pid)
        return found


def losses(model_dir: Path) -> dict[int, float]:
    """Loss of each step over all runs in a model_dir; repeated steps count once."""
    found: dict[int, float] = {}
    for path in model_dir.glob("events.out.tfevents.*"):
        for step, values in scalars(path):
            if "loss" in values:
                assert found.setdefault(step, values["loss"]) == values["loss"]
    return found


def scalars(path: Path) -> Iterator[tuple[int, Mapping[str, float]]]:
    """Steps and values of an events file, also of a killed writer."""
    for event in events(path):
        yield event.step, {value.tag: value.simple_value for value in event.summary.value}
