"""The chief's part of a run: trace, compile, lease a system, hand the runtime both."""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from csrun.advice.analysis.measurements import Fed, FeedRequest, Measurements
from csrun.advice.report import examine
from csrun.base.errors import CsrunError, PeerLost, UsageError
from csrun.compiler import CompileOptions, validate_model
from csrun.context import TaskContext, Terminated, analysis_dir
from csrun.data import Dataset
from csrun.estimator.compilation import (
    Compiled,
    compile_options,
    compile_traced,
    show_stage,
    with_replicas,
)
from csrun.estimator.config import CSRunConfig
from csrun.estimator.data_split import Streams
from csrun.estimator.input_report import InputReports, NoReports, describe, readers
from csrun.estimator.place import (
    Target,
    compile_target,
    fed_by_streamers,
    find_target,
    loaded_machine,
)
from csrun.estimator.progress import Show, compile_display, progress_display
from csrun.estimator.telemetry import telemetry_published
from csrun.estimator.trace import ModelFunction, TracedModel, trace_model
from csrun.estimator.warm_start import WarmTensors
from csrun.executable import RunMode
from csrun.records import checkpoints, events, log_lines, model_dir, params
from csrun.runtime.roles import loop as loops
from csrun.runtime.roles.machine import Machine
from csrun.runtime.step.initial_weights import initialize
from csrun.runtime.step.results import StepResult
from csrun.runtime.wire.messages import Results
from csrun.runtime.wire.rendezvous import RunFolder

log = logging.getLogger("csrun")

MODEL_DIR = "model_dir"  # of an analysis whose command keeps nothing


@dataclass(frozen=True)
class Chief:
    """What the chief was given. `context` and `folder` are None without a launcher.

    reports: what the estimator's runs have said of their input functions. make: makes the data set
    anew.
    """

    model_fn: ModelFunction
    model_dir: Path
    config: CSRunConfig
    params: Any
    context: TaskContext | None
    folder: RunFolder | None
    reports: InputReports
    make: Callable[[], Dataset]

    def train(
        self, dataset: Dataset, steps: int | None, max_steps: int | None, path: Path | None
    ) -> Results:
        """Train from the checkpoint given, the newest one, or initial weights."""
        log.info(log_lines.saving_to(self.model_dir))
        with model_dir.opened(self.model_dir), model_dir.locked(self.model_dir, self._me()):
            try:
                return self._train(dataset, steps, max_steps, path)
            except (KeyboardInterrupt, Terminated, PeerLost):
                log.info(log_lines.interrupted(self.model_dir, self._newest()))
                raise

    def train_to_checkpoint(self, dataset: Dataset, max_steps: int) -> Results:
        """Train up to the next multiple of save_checkpoints_steps, `max_steps` at most."""
        found = checkpoints.latest(self.model_dir)
        first, every = found.step if found else 0, self.config.save_checkpoints_steps
        due = first - first % every + every
        return self.train(dataset, None, min(due, max_steps), None)

    def _train(
        self, dataset: Dataset, steps: int | None, max_steps: int | None, path: Path | None
    ) -> Results:
        found = checkpoints.open_checkpoint(path) if path else checkpoints.latest(self.model_dir)
        first = found.step if found else 0
        limits = (first + steps if steps is not None else None, max_steps)
        last = min((limit for limit in limits if limit is not None), default=None)
        target = find_target(self.context, self.config.cs_ip)
        if found is not None and last is not None and first >= last:
            traced = self._trace(dataset, compile_options(self.config, RunMode.TRAIN, target))
            found.require_same(traced.weights())
            log.info(log_lines.already_trained(self.model_dir, first, last))
            return {"global_step": float(first)}
        streams = Streams.of(dataset)
        if found is not None:
            streams.require_same(found, target)
        compiled, traced = self._compile(dataset, RunMode.TRAIN, target, last)
        warm = self._warm_tensors(found, compiled)
        with self._machine(dataset, compiled, target, first, last) as (machine, show):
            self._set_state(machine, found, warm)
            options = loops.LoopOptions(
                self.model_dir,
                first,
                last,
                self.config.log_steps,
                self.config.save_checkpoints_steps,
                self.config.keep_checkpoint_max,
                {**self._identity(machine.plan.batch_size), **streams.identity()},
                compiled.seconds,
                traced.summaries,
                apart=streams.apart,
            )
            results = loops.Training(machine, options, traced.host, show).run()
            machine.close(results)
        return results

    def evaluate(self, dataset: Dataset, batches: int | None, path: Path | None) -> Results:
        """Evaluate a checkpoint: the one given, or the newest there is when a system is free."""
        self._trained(path)
        target = find_target(self.context, self.config.cs_ip)
        log.info(log_lines.saving_to(self.model_dir))
        with model_dir.opened(self.model_dir):
            compiled, traced = self._compile(dataset, RunMode.EVAL, target, batches)
        with self._machine(dataset, compiled, target, 0, batches) as (machine, show):
            found = self._restore_trained(machine, path)
            results = loops.evaluate(machine, found.step, batches, traced.host, show)
            machine.close(results)
        log.info(log_lines.evaluated(results))
        self._write_events(results)
        return results

    def predict(
        self,
        dataset: Dataset,
        batches: int | None,
        path: Path | None,
        take: Callable[[StepResult], None],
    ) -> Results:
        """Give the predictions of a checkpoint, chosen as by `evaluate`, to `take`."""
        self._trained(path)
        target = find_target(self.context, self.config.cs_ip)
        with model_dir.opened(self.model_dir):
            compiled, _ = self._compile(dataset, RunMode.PREDICT, target, batches)
        with self._machine(dataset, compiled, target, 0, batches) as (machine, show):
            found = self._restore_trained(machine, path)
            samples = loops.predict(machine, batches, take, show)
            results = {"global_step": float(found.step), "samples": float(samples)}
            machine.close(results)
        log.info(log_lines.predicted(samples, found.step))
        return results

    def validate_only(self, dataset: Dataset, mode: RunMode) -> Results:
        """Match kernels, and leave nothing; no system is needed."""
        target = compile_target(self.context, self.config.cs_ip)
        traced = self._trace(dataset, compile_options(self.config, mode, target))
        with compile_display(self.context) as begin:
            model = validate_model(traced.module, show_stage, begin)
        layers = len({op.scope for op in model.parameters})
        log.info(log_lines.validated(layers, len(model.kernels)))
        self.reports.give(describe(dataset, mode, readers(self.context, False)), None)
        if (folder := _to_measure()) is not None:
            unkept = replace(self, model_dir=folder / MODEL_DIR, reports=NoReports())
            unkept.compile_only(dataset, mode)
        return {}

    def compile_only(self, dataset: Dataset, mode: RunMode) -> Results:
        """Compile and leave the artifacts; no system is needed."""
        target = compile_target(self.context, self.config.cs_ip)
        with model_dir.opened(self.model_dir):
            compiled, _ = self._compile(dataset, mode, target, runs=False)
        if (folder := _to_measure()) is not None:
            from csrun.advice.sweep import measure_pipeline  # only an analysis pays

            findings = examine(describe(dataset, mode, readers(self.context, False)))
            suggestions = tuple(finding.message for finding in findings)
            seed = self.config.seed
            measure_pipeline(compiled.executable, self.make, seed, suggestions, folder)
        return {}

    def feed(self, dataset: Dataset, asked: FeedRequest, analysis: Path) -> Results:
        """Take what this job's streamers deliver, without a step, for the analysis of the input."""
        if self.context is None or self.folder is None:
            raise UsageError("a job's streamers feed: run it with csrun_wse")
        kept = analysis / MODEL_DIR
        chief = replace(
            self, model_dir=kept if kept.exists() else self.model_dir, reports=NoReports()
        )
        target = find_target(self.context, self.config.cs_ip)
        executable = chief._compile(dataset, RunMode.TRAIN, target)[0].executable
        streamers = len(self.context.streamers)
        log.info(log_lines.feeding(streamers, asked.seconds))
        samples, seconds = fed_by_streamers(
            executable, dataset, self.config, target, self.folder, asked.seconds
        )
        rate = samples / seconds if seconds else 0.0
        Fed(rate, seconds, streamers).write(analysis)
        log.info(log_lines.fed(rate))
        return {}

    def _trained(self, path: Path | None) -> checkpoints.Checkpoint:
        """The checkpoint given, or the newest.

        Raises: UsageError when there is none
        """
        found = checkpoints.open_checkpoint(path) if path else checkpoints.latest(self.model_dir)
        if found is None:
            raise UsageError(
                f"{self.model_dir}: no checkpoint to evaluate; train first, or give "
                "--checkpoint_path"
            )
        return found

    def _restore_trained(self, machine: Machine, path: Path | None) -> checkpoints.Checkpoint:
        """Chosen only now: a training beside us removes old ones while we compile and wait."""
        found = self._trained(path)
        log.info(log_lines.restoring(found.path))
        found.restore(machine.state)
        return found

    def _warm_tensors(
        self, found: checkpoints.Checkpoint | None, compiled: Compiled
    ) -> WarmTensors | None:
        start = self.config.warm_start
        return WarmTensors(start, compiled.executable.plan) if start and found is None else None

    def _me(self) -> str:
        """How this run is named to another that wants its model_dir."""
        job = f"job {self.context.job.job_id}, " if self.context else ""
        return f"{job}process {os.getpid()} on {socket.gethostname()}"

    def _newest(self) -> str | None:
        """The name of the checkpoint from which the next run would resume."""
        with suppress(CsrunError):
            found = checkpoints.latest(self.model_dir)
            return found.name if found else None
        return None

    def _write_events(self, results: Results) -> None:
        """An evaluation's events, beside the training's; its results stand without them, too."""
        values = dict(results)
        step = int(values.pop("global_step"))
        try:
            with closing(events.EventWriter(self.model_dir / RunMode.EVAL)) as writer:
                writer.scalars(values, step)
        except CsrunError as error:
            log.warning(log_lines.evaluation_not_kept(error))

    def _write_params(self, run_mode: RunMode) -> None:
        if self.params is not None:
            params.write(self.model_dir, run_mode, self.params)

    def _compile(
        self,
        dataset: Dataset,
        run_mode: RunMode,
        target: Target,
        last: int | None = None,
        runs: bool = True,
    ) -> tuple[Compiled, TracedModel]:
        """Compile, for a run up to step `last` if one follows, and report on the input function."""
        options = compile_options(self.config, run_mode, target)
        traced = self._trace(dataset, options)
        if self.config.multireplica:
            options = with_replicas(traced.module, options)
            if options.replicas > 1:
                traced = self._trace(dataset, options)
        self._write_params(run_mode)
        with compile_display(self.context) as begin:
            compiled = compile_traced(traced.module, self.model_dir, options, begin)
        wanted = compiled.executable.plan.estimate.samples_per_sec
        pipeline = describe(dataset, run_mode, readers(self.context, runs), last, wanted)
        self.reports.give(pipeline, compiled.executable.directory)
        return compiled, traced

    def _trace(self, dataset: Dataset, options: CompileOptions) -> TracedModel:
        log.info(log_lines.RUNNING_CLIENT)
        log.info(log_lines.CALLING_MODEL_FN)
        traced = trace_model(
            self.model_fn,
            dataset,
            options.run_mode,
            self.params,
            self.config.precision,
            options.minibatches,
        )
        log.info(log_lines.DONE_CALLING_MODEL_FN)
        return traced

    @contextmanager
    def _machine(
        self, dataset: Dataset, compiled: Compiled, target: Target, first: int, last: int | None
    ) -> Iterator[tuple[Machine, Show]]:
        with (
            progress_display(self.context) as show,
            loaded_machine(
                compiled.executable, dataset, self.config, first, last, target, self.folder
            ) as machine,
            telemetry_published(show, target, machine.plan.arena_bytes) as show_everywhere,
        ):
            yield machine, show_everywhere

    def _set_state(
        self, machine: Machine, found: checkpoints.Checkpoint | None, warm: WarmTensors | None
    ) -> None:
        started = perf_counter()
        if found is None:
            initialize(machine.plan, machine.state, self.config.seed)
            log.info(log_lines.weights_initialized(perf_counter() - started))
            if warm is not None:
                count = warm.take(machine.state)
                log.info(log_lines.warm_started(warm.checkpoint.path, count))
        else:
            log.info(log_lines.restoring(found.path))
            self._warn_of_changes(found, machine.plan.batch_size)
            found.restore(machine.state)
            log.info(log_lines.weights_loaded(perf_counter() - started))

    def _warn_of_changes(self, found: checkpoints.Checkpoint, batch_size: int) -> None:
        """What a resumed run trains on depends on these; tensors' types show the precision."""
        now = self._identity(batch_size)
        for name in ("seed", "batch_size"):
            then = found.manifest.identity.get(name)
            if then is not None and then != now[name]:
                log.warning(log_lines.resumed_differently(found.name, name, then, now[name]))

    def _identity(self, batch_size: int) -> dict[str, str]:
        return {
            "seed": str(self.config.seed),
            "precision": self.config.precision,
            "batch_size": str(batch_size),
        }


def _to_measure() -> Path | None:
    """The folder of the analysis of the input that this is a part of; None without one.

    The first compile is measured: it is in its first run, too, that a job for the analysis feeds.
    """
    folder = analysis_dir()
    return None if folder is None or Measurements.read(folder) is not None else folder
