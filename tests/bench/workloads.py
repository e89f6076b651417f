"""The training workloads: fc_mnist's two configurations, on its own batches."""

import sys
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).parents[2] / "reference_models" / "fc_mnist"
sys.path.insert(0, str(MODEL))


@dataclass(frozen=True)
class Workload:
    """A configuration, and how many steps of it take a second or two."""

    name: str
    params: str
    steps: int
    pipelined_over_eager: float  # promised

    @property
    def params_path(self) -> Path:
        return MODEL / "configs" / self.params


WORKLOADS = (
    Workload("fc_mnist 10 x 50, batch 128, SGD", "params.yaml", 3000, 1.5),
    Workload("fc_mnist 500-300, batch 256, Adam", "params_500_300.yaml", 400, 0.9),
)
