"""A job that only feeds: what its streamers deliver, for the analysis of the input."""

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from csrun.advice.feed import drain
from csrun.advice.measurements import Fed, FeedRequest
from csrun.base.errors import UsageError
from csrun.estimator.compilation import compile_run
from csrun.estimator.input_report import NoReports
from csrun.estimator.place import cluster_for, find_target, run_request
from csrun.estimator.prepare import MODEL_DIR
from csrun.estimator.run import Run
from csrun.executable import RunMode
from csrun.runtime.wire.messages import Results

log = logging.getLogger("csrun")


def feed(run: Run, asked: FeedRequest, analysis: Path) -> Results:
    """Take what this job's streamers deliver, without a system and without a step.

    Raises: UsageError where there is no job
    """
    if run.context is None or run.folder is None:
        raise UsageError("a job's streamers feed: run it with csrun_wse")
    streamers = len(run.context.streamers)
    kept = analysis / MODEL_DIR  # there when the analysis has compiled a command that keeps nothing
    run = replace(run, model_dir=kept if kept.exists() else run.model_dir, reports=NoReports())
    target = find_target(run.context, run.config.cs_ip)
    executable = compile_run(run, RunMode.TRAIN, target).executable
    log.info(f"Taking what {streamers} streamer(s) deliver for {asked.seconds:g} seconds")
    with ExitStack() as stack:
        cluster = cluster_for(stack, run, target)
        samples, seconds = drain(
            cluster.feed(run_request(run, executable, target, 0, None)), asked.seconds
        )
        cluster.stop({})
    rate = samples / seconds if seconds else 0.0
    Fed(rate, seconds, streamers).write(analysis)
    log.info(f"The streamers delivered {rate:,.0f} samples/s")
    return {}
