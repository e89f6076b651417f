"""Compilation of a run's model function to an Executable in its model_dir."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import msgspec
import psutil

from csrun.base.errors import UsageError
from csrun.base.files import replace_link
from csrun.base.run_config import CSRunConfig
from csrun.base.sizes import size_text
from csrun.cirh import storage_of
from csrun.compiler import (
    CompileError,
    CompileOptions,
    TooLargeError,
    chosen_before,
    compile_model,
    is_compiled,
    questions_of,
    update_options,
)
from csrun.compiler.report.number_format import listed, plain, si
from csrun.compiler.report.text_report import TEXT_FILE
from csrun.context import cache_dir, rerun
from csrun.data import Dataset
from csrun.estimator.compile_observer import observer_of
from csrun.estimator.compile_options import compile_options, form_of_products, recomputes
from csrun.estimator.input_report import describe, readers
from csrun.estimator.micro_batches import AUTO, micro_batches_of, next_size
from csrun.estimator.model_trace import TracedModel, share_of
from csrun.estimator.progress import Begin, compile_display
from csrun.estimator.replica_choice import require_streamers, with_replicas
from csrun.estimator.run import EstimatorRun
from csrun.estimator.target import Target
from csrun.executable import Executable, Plan, RunMode, nbytes_of
from csrun.executable.kernel_code import cache_objects
from csrun.records import log_lines, model_dir
from csrun.records.scalar_events import event_files

LARGE_BYTES = 10**9  # of a batch

log = logging.getLogger("csrun")


@dataclass(frozen=True)
class Compiled:
    """An Executable, its compile time and the traced model. update: of the model's, if any."""

    executable: Executable
    seconds: float
    traced: TracedModel
    update: Executable | None = None


def compile_run(
    run: EstimatorRun, run_mode: RunMode, target: Target, last: int | None = None, runs: bool = True
) -> Compiled:
    """Compile the model of a run, and report on its input function.

    runs: True if a run up to step `last` follows immediately.
    """
    check_batch_bytes(run.dataset)
    options = run_options(run, run_mode, target)
    traced = trace_run(run, options)
    if run.config.multireplica and run_mode is RunMode.TRAIN:
        options = with_replicas(traced.module, options, run.model_dir, _private_cache())
        if runs:
            require_streamers(options.replicas, target)
        if options.replicas > 1:
            traced = _traced(run, options)
    is_of_training = run_mode is RunMode.TRAIN and event_files(run.model_dir)
    if run.params is not None and (runs or not is_of_training):  # those are the training's
        model_dir.write_params(run.model_dir, run_mode, run.params)
    with compile_display(run.context) as begin:
        compiled = compile_fitting(tracing_of(run), traced, run.model_dir, options, begin)
    wanted = compiled.executable.plan.estimate.samples_per_sec
    pipeline = describe(run.dataset, run_mode, readers(run.context, runs), last, wanted)
    run.reports.publish(pipeline, compiled.executable.directory)
    return compiled


def check_batch_bytes(dataset: Dataset) -> None:
    """Log the size of a batch so large that making the first one may look like a hang.

    Called before the first batch where its size can be estimated, else after it.

    Raises: UsageError for an estimate above the machine's free memory
    """
    nbytes = dataset.estimated_batch_bytes()
    if nbytes is None:
        specs = dataset.element_spec()
        nbytes = sum(nbytes_of(spec.shape, str(spec.dtype)) for spec in specs)
    elif nbytes > (free := psutil.virtual_memory().available):
        raise UsageError(
            f"input_fn: a batch of {size_text(nbytes)} exceeds this machine's free memory of "
            f"{size_text(free)}: lower batch_size"
        )
    if nbytes >= LARGE_BYTES:
        log.info(f"A batch has {si(nbytes, 'B')}: the first one may take minutes")


@dataclass(frozen=True)
class Tracing:
    """Source of a compile: `trace` traces the model for the micro-batch size of its options.

    batch: samples per batch
    describes: the compile directory has the text of the stages and the report's page.
    """

    config: CSRunConfig
    batch: int
    trace: Callable[[CompileOptions], TracedModel]
    describes: bool = True

    def configured(self, options: CompileOptions) -> CompileOptions:
        """Return the options with the configured micro-batches.

        Raises: UsageError for a micro-batch that does not divide the batch
        """
        config = self.config
        if config.micro_batch_size == AUTO:
            return options
        count = micro_batches_of(share_of(self.batch, options.systems), config.micro_batch_size)
        again = recomputes(config, options)
        return msgspec.structs.replace(options, micro_batches=count, recompute=again)


def tracing_of(run: EstimatorRun) -> Tracing:
    """Return the Tracing of a run's model function."""
    return Tracing(run.config, batch_size_of(run), partial(_traced, run))


def compile_fitting(
    tracing: Tracing, traced: TracedModel, model_dir: Path, options: CompileOptions, begin: Begin
) -> Compiled:
    """Compile the traced model, with the products of its format.

    In micro-batches if the batch does not fit and may be split.

    Raises: TooLargeError
    """
    products = form_of_products(tracing.config, options.kernels, storage_of(traced.module))
    options = msgspec.structs.replace(options, products=products)
    if tracing.config.micro_batch_size == AUTO:
        compiled = _compile_chosen(tracing, traced, model_dir, options, begin)
    else:
        compiled = compile_traced(traced, model_dir, options, begin, tracing.describes)
    _log_split(compiled.executable.plan)
    return compiled


def _compile_chosen(
    tracing: Tracing, traced: TracedModel, model_dir: Path, options: CompileOptions, begin: Begin
) -> Compiled:
    """Compile the whole batch, or the chosen micro-batches if it does not fit.

    A cached compile whose micro-batches were chosen for this model is reused without trying again.
    It is not looked for if a compile of the whole batch is cached.
    """
    asked = msgspec.structs.replace(options, recompute=recomputes(tracing.config, options))
    whole, question = questions_of(traced.module, options, asked)
    fits = is_compiled(whole, model_dir)
    if not fits and (plan := chosen_before(question, model_dir, _private_cache())) is not None:
        parts, again = plan.micro_batches, bool(plan.recomputed)
        options = msgspec.structs.replace(options, micro_batches=parts, recompute=again)
    else:
        try:
            return compile_traced(traced, model_dir, options, begin, tracing.describes)
        except TooLargeError as error:
            options = _choose_split(tracing, options, begin, error)
    options = msgspec.structs.replace(options, chosen_for=(*options.chosen_for, question))
    return compile_traced(tracing.trace(options), model_dir, options, begin)


def _choose_split(
    tracing: Tracing, options: CompileOptions, begin: Begin, too_large: TooLargeError
) -> CompileOptions:
    """Return the options estimated fastest for a batch that does not fit as a whole.

    Candidates are the largest micro-batch that fits, and the largest that fits with recomputation.

    Raises: TooLargeError if no micro-batch fits, or the batch cannot be split
    """
    batch = share_of(tracing.batch, options.systems)
    size = next_size(batch, options.micro_batches, too_large)
    found = _largest(tracing, options, begin, batch, size)
    if recomputes(tracing.config, options):
        again = msgspec.structs.replace(options, recompute=True)
        # From the whole batch on: with recomputation more samples may fit than without.
        made_again = _largest(tracing, again, begin, batch, batch)
        found += [each for each in made_again if each.plan.recomputed]
    if not found:
        raise too_large
    log.info(
        f"A batch of {batch} samples takes {too_large.why}; estimates: {'; '.join(map(str, found))}"
    )
    return max(found, key=lambda each: each.samples_per_sec).options


@dataclass(frozen=True)
class _Fitting:
    """Options of a compile that fits, and its plan with the estimated rate."""

    options: CompileOptions
    plan: Plan

    @property
    def samples_per_sec(self) -> float:
        return self.plan.estimate.samples_per_sec

    def __str__(self) -> str:
        recomputation = "recomputation" if self.plan.recomputed else "no recomputation"
        rate = f"{plain(self.samples_per_sec, 3)} samples/s"
        if self.plan.micro_batches == 1:
            return f"{rate} with {recomputation}"
        return f"{rate} with {self.plan.micro_batches} micro-batches, {recomputation}"


def _largest(
    tracing: Tracing, options: CompileOptions, begin: Begin, batch: int, size: int | None
) -> list[_Fitting]:
    """Return the largest micro-batch up to a size that fits, or an empty list."""
    with TemporaryDirectory() as folder:
        while size is not None:
            options = msgspec.structs.replace(options, micro_batches=batch // size)
            try:
                module = tracing.trace(options).module
                plan = compile_model(
                    module, Path(folder), options, observer_of(begin)
                ).executable.plan
            except TooLargeError as error:
                size = next_size(batch, options.micro_batches, error)
            except CompileError:  # the model mixes samples, so the batch cannot be split
                return []
            else:
                return [_Fitting(options, plan)]
    return []


def _log_split(plan: Plan) -> None:
    """Log the micro-batches and recomputation of a plan, if any."""
    if plan.micro_batches > 1:
        size = plan.batch_size // plan.systems // plan.micro_batches
        log.info(f"Micro-batches: {plan.micro_batches} of {size} samples")
    if plan.recomputed:
        log.info(
            f"Recomputation: {len(plan.recomputed)} segments are recomputed in the backward pass "
            f"because their activations do not fit: {listed(plan.recomputed)}"
        )


def batch_size_of(run: EstimatorRun) -> int:
    """Samples per batch of the run's input function."""
    return run.dataset.element_spec()[0].shape[0]


def trace_run(run: EstimatorRun, options: CompileOptions) -> TracedModel:
    """Call the run's model function on tensors of the shapes of the options."""
    log.info(log_lines.RUNNING_CLIENT)
    log.info(log_lines.CALLING_MODEL_FN)
    traced = _traced(run, options)
    log.info(log_lines.DONE_CALLING_MODEL_FN)
    return traced


def _traced(run: EstimatorRun, options: CompileOptions) -> TracedModel:
    return run.trace(run.dataset, options)


def run_options(run: EstimatorRun, run_mode: RunMode, target: Target) -> CompileOptions:
    """Return the options of a run's compile, with the configured micro-batches.

    Raises: UsageError as `compile_options`, or for a micro-batch that does not divide the batch
    """
    return tracing_of(run).configured(compile_options(run.config, run_mode, target))


def compile_traced(
    traced: TracedModel,
    model_dir: Path,
    options: CompileOptions,
    begin: Begin,
    describes: bool = True,
) -> Compiled:
    """Compile, or reuse the artifacts of an equal compile in model_dir.

    Either way, compile_report.txt in the working directory links to their report. `begin` is called
    with the name of each stage. describes: as in Tracing.
    """
    started = perf_counter()
    private = _private_cache()
    cache_objects(cache_dir() / "objects")
    observer = observer_of(begin, describes)
    result = compile_model(traced.module, model_dir, options, observer, private)
    seconds = perf_counter() - started
    folder = result.executable.directory
    if rerun() is None:
        link_report(folder)
    if result.foreign:
        log.warning(
            f"{model_dir / folder.name} is owned or writable by another account, so its program is "
            f"not run; the compile is kept in {private}"
        )
    if result.replaced:
        log.info(f"{folder} was damaged or written by another version of csrun: compiled again")
    if result.cached:
        log.info(log_lines.compile_found(folder))
    else:
        log.info(f"Compiled in {seconds:.2f} seconds: {folder}")
    update = None
    if traced.update is not None:
        own = update_options(options)
        update = compile_model(
            traced.update, model_dir, own, observer_of(begin), private
        ).executable
    return Compiled(result.executable, seconds, traced, update)


def _private_cache() -> Path:
    """Cache of compiles of this account."""
    return cache_dir() / "compiles"


def link_report(compiled: Path) -> None:
    """Point the compile_report.txt link to the report of a compile directory.

    A file or folder of that name is left alone, and errors are ignored: the report itself is in the
    compile directory.
    """
    link = Path(TEXT_FILE)
    with suppress(OSError):
        # A report that the user has written there is not ours to replace.
        if link.is_symlink() or not link.exists():
            replace_link(link, compiled / TEXT_FILE)
