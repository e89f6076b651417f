"""The `runconfig` section of a params file."""

from csrun.estimator.config import CSRunConfig, Positive


class RunConfig(CSRunConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the estimator is configured with, and how far the run goes.

    max_steps: the global step to train up to, whatever was trained before; steps: how many to train
    from where the model_dir stands; only one of the two is given. eval_steps: batches to evaluate,
    all of the data when absent.
    """

    model_dir: str = "model_dir"
    max_steps: Positive | None = None
    steps: Positive | None = None
    eval_steps: Positive | None = None
    checkpoint_path: str | None = None
