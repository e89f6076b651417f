"""Number of replicas of a model on one wafer: the choice, its log line, and its streamers."""

import logging
from pathlib import Path

import msgspec
from xdsl.dialects.builtin import ModuleOp

from csrun.base.errors import UsageError
from csrun.compiler import (
    CompileOptions,
    PassObserver,
    ReplicaChoice,
    choose_replicas,
    chosen_before,
    question_of,
)
from csrun.estimator.compile_observer import verification
from csrun.estimator.layout_advice import LayoutAdvice
from csrun.estimator.target import Target

log = logging.getLogger("csrun")

NOT_ALLOWED = "Multireplica not allowed for current model. Disabling multireplica:"


def with_replicas(
    module: ModuleOp, options: CompileOptions, model_dir: Path, cache: Path
) -> CompileOptions:
    """Return the options with the estimated best number of replicas of a module traced for one.

    A compile in model_dir or the account's cache that was chosen for an equal module and equal
    options has the number.
    """
    question = question_of(module, options)
    plan = chosen_before(question, model_dir, cache)
    if plan is None:
        choice = choose_replicas(module, options, PassObserver(verify=verification()))
        if choice.refused is not None:
            log.warning(f"{NOT_ALLOWED} {choice.refused}")
        else:
            log.info(f"Multireplica: {_choice_text(choice)}")
        replicas = choice.replicas
    else:
        replicas = plan.replicas
        log.info(f"Multireplica: {_replicas(replicas)}, as chosen by the cached compile")
    return msgspec.structs.replace(options, replicas=replicas, chosen_for=(question,))


def require_streamers(replicas: int, target: Target) -> None:
    """Raise UsageError for a job with fewer streamers than replicas of the model."""
    if target.context is None or target.site is None:
        return
    streamers = len(target.context.streamers)
    if streamers < replicas:
        layout = LayoutAdvice.of(target.context.job, target.site.nodes)
        raise UsageError(
            f"multireplica: {_replicas(replicas)} need a streamer each, the job has {streamers}: "
            f"run it with {layout.options_for(replicas)}, or leave --multireplica out"
        )


def _replicas(count: int) -> str:
    return f"{count} replicas of the model" if count > 1 else "one replica of the model"


def _choice_text(choice: ReplicaChoice) -> str:
    if choice.replicas > 1:
        return f"{_replicas(choice.replicas)}, estimated {choice.gain:.2f}x as fast as one"
    if choice.most > 1:
        return (
            f"one replica of the model: up to {choice.most} fit, but more are not estimated to be "
            "faster"
        )
    return "one replica of the model: a second one does not fit"
