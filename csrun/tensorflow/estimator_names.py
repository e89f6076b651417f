"""Names of `tf.estimator` in scripts: modes, specifications and train_and_evaluate."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from csrun.base.errors import UsageError


class ModeKeys:
    """Modes of a model_fn."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


@dataclass(frozen=True)
class TrainSpec:
    """Training of train_and_evaluate."""

    input_fn: Any
    max_steps: int | None = None
    hooks: Any = None


@dataclass(frozen=True)
class EvalSpec:
    """Evaluation of train_and_evaluate; the seconds of waiting have no effect."""

    input_fn: Any
    steps: int | None = 100
    name: str | None = None
    hooks: Any = None
    exporters: Any = None
    start_delay_secs: int = 0
    throttle_secs: int = 0


@dataclass(frozen=True)
class WarmStartSettings:
    """Checkpoint and names of the initial weights of a training."""

    ckpt_to_initialize_from: str
    vars_to_warm_start: Any = ".*"


def train_and_evaluate(estimator: Any, train_spec: TrainSpec, eval_spec: EvalSpec) -> Any:
    """Train, and evaluate after each checkpoint.

    Raises: UsageError without max_steps
    """
    if train_spec.max_steps is None:
        raise UsageError("train_and_evaluate: TrainSpec needs max_steps, got None")
    return estimator.train_and_evaluate(
        train_spec.input_fn, eval_spec.input_fn, train_spec.max_steps, eval_spec.steps
    )


def estimator_module() -> ModuleType:
    """Return a module of these names."""
    from csrun.tensorflow.tf_estimator import CerebrasEstimator
    from csrun.tensorflow.tf_run_config import CSRunConfig
    from csrun.tensorflow.tf_spec import CSEstimatorSpec

    made = ModuleType("tensorflow.estimator", "Stand-in of csrun.")
    made.__dict__.update(
        Estimator=CerebrasEstimator,
        EstimatorSpec=CSEstimatorSpec,
        EvalSpec=EvalSpec,
        ModeKeys=ModeKeys,
        RunConfig=CSRunConfig,
        TrainSpec=TrainSpec,
        WarmStartSettings=WarmStartSettings,
        train_and_evaluate=train_and_evaluate,
    )
    return made
