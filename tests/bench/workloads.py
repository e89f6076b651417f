"""The training workloads: fc_mnist's two configurations and a large network, on its batches."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

MODEL = Path(__file__).parents[2] / "reference_models" / "fc_mnist"
sys.path.insert(0, str(MODEL))


@dataclass(frozen=True)
class Workload:
    """A configuration, and how many steps of it take a second or two.

    sections: what is changed of the params file.

    Targets of a job on two CPUs with AVX2, as docs/performance.md derives them:
    wanted: pipelined steps per second compared with the best of PyTorch.
    of_peak: share of the matrix-product peak.
    streamed: streaming compared with pipelined; None for steps that are too short.
    """

    name: str
    params: str
    steps: int
    wanted: float
    of_peak: float | None = None
    streamed: float | None = 0.95
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def write_params(self, folder: Path) -> Path:
        """The params file, in a folder."""
        params = yaml.safe_load((MODEL / "configs" / self.params).read_text())
        for name, section in self.sections.items():
            params[name] = {**params.get(name, {}), **section}
        for name in ("train_input", "eval_input"):
            params[name]["data_dir"] = str(MODEL / params[name]["data_dir"])
        path = folder / "params.yaml"
        path.write_text(yaml.safe_dump(params))
        return path


WORKLOADS = (
    Workload("fc_mnist 10 x 50, batch 128, SGD", "params.yaml", 3000, 3.0, 0.25, None),
    Workload("fc_mnist 500-300, batch 256, Adam", "params_500_300.yaml", 400, 1.3),
    Workload(
        "MLP 4096-4096-4096, batch 256, AdamW",
        "params_500_300.yaml",
        12,
        1.05,
        sections={
            "model": {"hidden_sizes": [4096, 4096, 4096]},
            "optimizer": {"optimizer_type": "adamw", "weight_decay": 0.01},
            "runconfig": {"save_checkpoints_steps": 10_000, "save_initial_checkpoint": False},
        },
    ),
)
