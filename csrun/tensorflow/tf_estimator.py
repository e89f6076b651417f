"""CerebrasEstimator of TensorFlow model functions."""

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from csrun.base.errors import UsageError
from csrun.base.half_formats import storage_format
from csrun.base.run_config import CSRunConfig as RunOptions
from csrun.base.run_config import WarmStart
from csrun.compiler import CompileOptions
from csrun.data import Dataset
from csrun.estimator import CerebrasEstimator as NativeEstimator
from csrun.estimator.model_trace import TracedModel
from csrun.estimator.run import EstimatorRun
from csrun.executable import RunMode
from csrun.runtime.wire.messages import Results
from csrun.tensorflow.joined_batches import KEY, batches_of_step, joined, without_accumulation
from csrun.tensorflow.tf_input import input_of
from csrun.tensorflow.tf_run_config import CSRunConfig

if TYPE_CHECKING:
    from csrun.tensorflow.script_precision import StorageChoice

log = logging.getLogger("csrun")

MODES = {"train": RunMode.TRAIN, "eval": RunMode.EVAL, "infer": RunMode.PREDICT}


class CerebrasEstimator(NativeEstimator):
    """Training and evaluation of a TensorFlow 1 `model_fn(features, labels, mode, params)`.

    In a job only the chief calls model_fn and imports TensorFlow for it. The methods have the
    arguments of the original's estimator; hooks, saving_listeners and compile_dir have no effect.

    warm_start_from: a checkpoint of csrun, or settings with ckpt_to_initialize_from and
    vars_to_warm_start.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | Path | None = None,
        compile_dir: str | Path | None = None,
        config: CSRunConfig | RunOptions | None = None,
        params: Any = None,
        warm_start_from: Any = None,
    ) -> None:
        self._given_config = config
        self._last: int | None = None  # last step of a training
        folder = model_dir or getattr(config, "model_dir", None) or "model_dir"
        options = config.to_csrun() if isinstance(config, CSRunConfig) else config or RunOptions()
        super().__init__(model_fn, folder, _warmed(options, warm_start_from), params)

    @property
    def model_dir(self) -> str:
        """Folder of checkpoints and reports."""
        return str(self._model_dir)

    @property
    def params(self) -> Any:
        """The params of model_fn and input_fn."""
        return self._params

    @property
    def config(self) -> Any:
        """The configuration as given."""
        return self._given_config

    def train(  # type: ignore[override]
        self,
        input_fn: Callable[..., Any],
        hooks: Any = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Any = None,
        use_cs: bool = True,
    ) -> "CerebrasEstimator":
        """Train: `steps` more, or up to global step `max_steps`."""
        _log_ignored(hooks=hooks, saving_listeners=saving_listeners)
        self._last = max_steps if steps is None else self._newest_step() + steps
        super().train(input_fn, steps, max_steps)
        return self

    def evaluate(  # type: ignore[override]
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Any = None,
        checkpoint_path: str | Path | None = None,
        name: str | None = None,
        use_cs: bool = False,
    ) -> Results:
        """Return loss and metrics over `steps` batches, or all of them."""
        _log_ignored(hooks=hooks)
        return super().evaluate(input_fn, steps, checkpoint_path)

    def predict(  # type: ignore[override]
        self,
        input_fn: Callable[..., Any],
        predict_keys: Any = None,
        hooks: Any = None,
        checkpoint_path: str | Path | None = None,
        yield_single_examples: bool = True,
        num_samples: int | None = None,
        use_cs: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Return the predictions of each sample.

        num_samples: no more batches are read than they need

        Raises: UsageError for whole batches, or without a sample
        """
        _log_ignored(hooks=hooks)
        if not yield_single_examples:
            raise UsageError("predict: yield_single_examples=False is not supported: leave it out")
        if num_samples is not None and num_samples < 1:
            raise UsageError(f"predict: num_samples must be at least 1, got {num_samples}")

        def steps_of(batch_size: int) -> int | None:
            return None if num_samples is None else -(-num_samples // batch_size)

        found = self._predict(input_fn, steps_of, checkpoint_path)
        keys = [predict_keys] if isinstance(predict_keys, str) else predict_keys
        return iter(
            {name: v for name, v in sample.items() if keys is None or name in keys}
            for sample in found[:num_samples]
        )

    def compile(  # type: ignore[override]
        self, input_fn: Callable[..., Any], validate_only: bool = False, mode: str = "train"
    ) -> Results:
        """Compile the model into model_dir, or check that each operator has a kernel."""
        run_mode = MODES.get(mode)
        if run_mode is None:
            raise UsageError(f"compile: mode must be one of {', '.join(MODES)}, got {mode!r}")
        make = self._input(input_fn, run_mode)
        return (
            super().validate(make, run_mode) if validate_only else super().compile(make, run_mode)
        )

    def train_and_evaluate(
        self,
        train_input_fn: Callable[..., Any],
        eval_input_fn: Callable[..., Any],
        max_steps: int | None,
        eval_steps: int | None = None,
    ) -> Results:
        """Train up to global step `max_steps`, and evaluate after each checkpoint."""
        self._last = max_steps
        return super().train_and_evaluate(train_input_fn, eval_input_fn, max_steps, eval_steps)

    def _run(
        self,
        input_fn: Callable[..., Any],
        mode: RunMode,
        lead: Callable[[EstimatorRun], Results],
        others: Sequence[Callable[..., Any]] = (),
    ) -> Results:
        return super()._run(self._input(input_fn, mode), mode, lead, others)

    def _input(self, input_fn: Callable[..., Any], mode: RunMode) -> Callable[[Any], Any]:
        made = input_of(input_fn, mode, self._config.seed)
        count = batches_of_step(self._params) if mode is RunMode.TRAIN else 1
        if count == 1:
            return made
        log.info(f"{KEY} {count}: a step takes {count} batches, joined to one")
        return joined(made, count)

    def _newest_step(self) -> int:
        return int(max(self._kept().values(), default=0.0))

    def _trace(self, dataset: Dataset, options: CompileOptions) -> TracedModel:
        from csrun.tensorflow.tf_version import require_tensorflow

        require_tensorflow()  # before the modules below import it
        from csrun.tensorflow.graph_model import GraphRequest, trace_graph

        config = self._config
        asked = GraphRequest(
            self._model_fn,
            without_accumulation(self._params),
            self._given_config,
            config.seed,
            config.arithmetic,
            self._last,
            self._storage(),
            batches_of_step(self._params) > 1,
        )
        return trace_graph(asked, dataset, options)

    def _storage(self) -> "StorageChoice":
        """Return the choice of the 16-bit format: the run's precision, or else the script's
        policies.
        """
        from csrun.tensorflow.script_precision import StorageChoice

        config, given = self._config, self._given_config
        is_asked = isinstance(given, CSRunConfig) and given.precision is not None
        return StorageChoice(
            storage_format(config.precision, config.cb16_exponent_bias),
            not is_asked and config.precision == "float32",
            bool(getattr(getattr(given, "cs_config", None), "use_cbfloat16", False)),
        )


def _log_ignored(**given: Any) -> None:
    for name, value in given.items():
        if value:
            log.warning(f"{name} have no effect in csrun")


def _warmed(options: RunOptions, source: Any) -> RunOptions:
    """Return the options with the source of initial weights."""
    if source is None:
        return options
    import msgspec

    path = getattr(source, "ckpt_to_initialize_from", source)
    names = getattr(source, "vars_to_warm_start", None) or ".*"
    patterns = (names,) if isinstance(names, str) else tuple(names)
    return msgspec.structs.replace(
        options, warm_start=WarmStart(checkpoint_path=str(path), tensors=patterns)
    )
