"""PyTorch scripts of the user's Model Zoo checkout, run in a folder, and their output."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import yaml

CHECKOUT = os.environ.get("CSRUN_MODELZOO", "")
SUPPORT = Path(__file__).parent
LIMIT_S = 900
WSE = (sys.executable, "-m", "csrun.cli.csrun_wse")
JOB = (*WSE, "--total-nodes", "3", "python-pt")
ALONE = (sys.executable, "-W", "ignore")
#: The script's CPU mode, with csrun's float types and learning rates.
CPU = (*ALONE, str(SUPPORT / "modelzoo_cpu.py"), CHECKOUT)
CS = ("--cs_ip", "127.0.0.1")


class Zoo:
    """A folder in which scripts of the checkout run."""

    def __init__(self, folder: Path, model: str, params: dict[str, Any]) -> None:
        self.folder, self.script = folder, f"{CHECKOUT}/modelzoo/{model}/run.py"
        self.set(params)

    def set(self, params: dict[str, Any]) -> None:
        """Write the params file."""
        (self.folder / "params.yaml").write_text(yaml.safe_dump(params))

    def run(self, *arguments: str, by: tuple[str, ...] = ALONE) -> str:
        """Run the script; return what it prints."""
        stubs = str(SUPPORT / "modelzoo_stubs")
        paths = os.pathsep.join(filter(None, [stubs, os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [*by, self.script, "-p", "params.yaml", *arguments],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def checkpoint(self, run: str, step: int) -> dict[str, Any]:
        return torch.load(self.folder / run / f"checkpoint_{step}.mdl")


def losses(log: str) -> dict[int, str]:
    """Losses by step, from a script's own output."""
    lines = (line for line in log.splitlines() if ":csrun:" not in line)
    found = (re.search(r"\| \w+ Device=.*Step=(\d+),? Loss=([\d.]+)", line) for line in lines)
    return {int(match[1]): match[2] for match in found if match}


def metrics(log: str) -> list[float]:
    """Average loss and metrics of an evaluation, from the script's output."""
    found = re.findall(r"(?:'eval/\w+': |Avg Eval. Loss = )([\d.]+)", log)
    return [float(value) for value in found]


def contents() -> str:
    """Checksum of the checkout's Python files."""
    files = sorted(Path(CHECKOUT, "modelzoo").rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def tensors(tree: object) -> list[torch.Tensor]:
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]
