"""Names of `tf.estimator` in scripts: modes, specifications, inputs and train_and_evaluate."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

from csrun.base.errors import UsageError
from csrun.data import Dataset
from csrun.tensorflow.tf_input import run_seed


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


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Dataset]:
    """Return an input function of batches of arrays; num_epochs: passes, without end for None.

    queue_capacity, num_threads: have no effect.

    Raises: ValueError unless shuffle is True or False
    """
    if shuffle not in (True, False):
        raise ValueError(
            "shuffle must be provided and explicitly set as boolean (it is recommended to set it "
            "as True for training)."
        )

    def input_fn() -> Dataset:
        samples = Dataset.from_arrays(*((x,) if y is None else (x, y)))
        ordered = samples.shuffle(run_seed()) if shuffle else samples
        return ordered.repeat(num_epochs).batch(batch_size)

    return input_fn


#: Estimators of TensorFlow with a model of their own.
_CANNED = [
    f"{model}{task}"
    for model in ("Baseline", "BoostedTrees", "DNN", "DNNLinearCombined", "Linear")
    for task in ("Classifier", "Estimator", "Regressor")
]


def _refuse_canned(name: str, *_: Any, **__: Any) -> None:
    """Raises: UsageError"""
    raise UsageError(
        f"tf.estimator.{name} is not supported: write its model as a model_fn, with "
        "tf.compat.v1.feature_column.input_layer or linear_model, and use CerebrasEstimator"
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
        inputs=SimpleNamespace(numpy_input_fn=numpy_input_fn),
        train_and_evaluate=train_and_evaluate,
        **{name: partial(_refuse_canned, name) for name in _CANNED},
    )
    return made
