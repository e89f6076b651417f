"""CSRunConfig: configuration of a run under the names of tf.estimator.RunConfig."""

import logging
from typing import Any

from csrun.base.errors import UsageError
from csrun.base.run_config import CSRunConfig as RunOptions

log = logging.getLogger("csrun")

_OPTIONS = {
    "tf_random_seed": "seed",
    "save_checkpoints_steps": "save_checkpoints_steps",
    "keep_checkpoint_max": "keep_checkpoint_max",
    "log_step_count_steps": "log_steps",
}
#: Options of tf.estimator.RunConfig whose only supported value is None, or no device at all.
_MUST_BE_NONE = ("train_distribute", "eval_distribute", "save_checkpoints_secs")
_WITHOUT_EFFECT = (
    "model_dir",
    "save_summary_steps",
    "session_config",
    "keep_checkpoint_every_n_hours",
    "device_fn",
    "protocol",
    "experimental_distribute",
    "experimental_max_worker_delay_secs",
    "session_creation_timeout_secs",
    "checkpoint_save_graph_def",
)


class CSRunConfig:
    """Configuration of CerebrasEstimator.

    cs_ip, system_name: the CS system, as host, host:port or name.
    stack_params: options of the original's compiler; target_num_replicas of its `config` requests
        replicas of the model.
    precision: as runconfig.precision; None follows the Keras policy of a model_fn.

    Other options are those of tf.estimator.RunConfig.

    Raises: UsageError for an option that is unknown or not supported
    """

    def __init__(
        self,
        cs_ip: str | None = None,
        system_name: str | None = None,
        cs_config: Any = None,
        stack_params: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.precision = options.pop("precision", None)
        known = {*_OPTIONS, *_MUST_BE_NONE, *_WITHOUT_EFFECT}
        if unknown := set(options) - known:
            raise UsageError(
                f"CSRunConfig has no option {', '.join(sorted(unknown))}: use one of "
                f"{', '.join(sorted({*known, 'precision'}))}"
            )
        for name in _MUST_BE_NONE:
            if options.get(name) is not None:
                raise UsageError(f"CSRunConfig: {name} is not supported: leave it out")
        self.cs_ip = cs_ip or system_name
        self.cs_config = cs_config
        self.stack_params = dict(stack_params or {})
        self.options = options

    @property
    def model_dir(self) -> str | None:
        """Folder of the run, if the estimator sets none."""
        return self.options.get("model_dir")

    def to_csrun(self) -> RunOptions:
        """Return csrun's own form of the configuration."""
        found = {ours: self.options.get(name) for name, ours in _OPTIONS.items()}
        given = {name: int(value) for name, value in found.items() if value is not None}
        replicas = getattr(self.stack_params.get("config"), "target_num_replicas", None)
        numbers = {"precision": self.precision} if self.precision is not None else {}
        return RunOptions(cs_ip=self.cs_ip, multireplica=replicas == -1, **given, **numbers)  # type: ignore[arg-type]
