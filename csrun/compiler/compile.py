"""Stages of the compiler, from CIRH to an Executable on disk."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from xdsl.dialects.builtin import ModuleOp

from csrun.base.half_formats import BFLOAT16, HalfFormat
from csrun.base.version import VERSION
from csrun.cirh import precision_of, print_module, storage_of
from csrun.cirh.batch_axes import BatchRelation
from csrun.cirh.ops.model import ParameterOp
from csrun.cirh.types import dtype_of, shape_of, type_of
from csrun.compiler import compile_directory
from csrun.compiler.batch_parts import check_dependence
from csrun.compiler.compile_files import CompiledProgram, compile_files
from csrun.compiler.emit.codegen import generate, layers_in_kernel_order
from csrun.compiler.emit.recording_code import RecordingCode
from csrun.compiler.emit.update_code import ProgramUpdates
from csrun.compiler.emit.update_loops import UpdateForm
from csrun.compiler.errors import TooLargeError
from csrun.compiler.graph.graph import LOSS
from csrun.compiler.kernels import constant
from csrun.compiler.lair import Generated, print_kernels
from csrun.compiler.matching import MatchedModel, MatchedOutput, match_kernels
from csrun.compiler.options import CompileOptions
from csrun.compiler.passes import NO_OBSERVER, PassObserver, Stage, passes_for, run_passes
from csrun.compiler.passes.matrix_sharding import unsharded_matrices
from csrun.compiler.passes.pass_manager import GENERATING, MATCHING, PLACING, REPORT
from csrun.compiler.plan.arena import PlacedLayout, alive_in, has_half_gradients, place_model
from csrun.compiler.plan.performance_model import Work, estimate
from csrun.compiler.plan.pipeline_schedule import interleave
from csrun.compiler.plan.recompute import with_recomputation
from csrun.compiler.plan.store_layout import lay_out
from csrun.executable import (
    Combine,
    Estimate,
    Executable,
    InputSpec,
    Layer,
    MeasuredSteps,
    MinibatchVisit,
    Output,
    Plan,
    RecordedSteps,
    RecordedValue,
    Region,
    Visit,
    nbytes_of,
)
from csrun.executable.bfloat16 import instructions_of
from csrun.executable.kernel_code import LLVM
from csrun.executable.update_recorder import described_updates


@dataclass(frozen=True)
class CompileResult:
    """An Executable; whether it was reused, or replaced an unreadable one.

    foreign: the folder in model_dir belongs to another account and is not run; the private folder
        has the compile.
    """

    executable: Executable
    cached: bool
    replaced: bool = False
    foreign: bool = False


def compile_model(
    module: ModuleOp,
    root: Path,
    options: CompileOptions,
    observer: PassObserver = NO_OBSERVER,
    private: Path | None = None,
) -> CompileResult:
    """Compile a traced module into `<root>/tfcs_<checksum>/`, or reuse a compile found there.

    An existing compile is found by the text of the module before any pass, so reuse only costs
    printing the module. A compile that another account owns or may write is not reused; it is
    written to `private`, this account's own folder. `module` is changed. observer: without
    `describes` the directory has no texts of stages and no page, a third of the compile's time.

    Raises: UsageError for an operator without a kernel, or a plan that does not fit the system
    """
    # Before any pass: passes change the module, whose traced text is the key.
    text = print_module(module)
    checksum = compile_directory.checksum_of(text, options)
    target = compile_directory.path_of(root, checksum)
    beside = None if private is None else compile_directory.path_of(private, checksum)
    if (cached := _cached(target, beside)) is not None:
        return cached
    replaced = target.exists()
    passes = passes_for(options.part_bytes)
    texts = observer.texts or observer.describes
    passed = run_passes(module, passes, replace(observer, texts=texts), trace=text)
    observer.begin(MATCHING)
    model = match_kernels(module, records=_reads_values(module, options))
    check_dependence(model, options)
    generated = [kernel for kernel in model.kernels if isinstance(kernel, Generated)]
    updates = _updates_of(module, model, options)
    stages = passed
    if observer.describes:
        loops = [loop.op for loop in (*(kernel.loop for kernel in generated), *updates.kernels)]
        stages = passed.with_stage(Stage("lair", print_kernels(loops)))
    compiled = _back_end(module, model, updates, options, checksum, observer)
    observer.begin(REPORT)
    arrays = constant.files_of(model.kernels)
    described = passed.stages if observer.describes else None
    files = compile_files(compiled, options.system, described, generated, arrays)
    files = {**stages.files, **files}
    executable = compile_directory.keep(root, private or root, checksum, files, arrays)
    foreign = compile_directory.is_foreign(target)
    return CompileResult(executable, False, replaced and not foreign, foreign)


def _cached(target: Path, private: Path | None) -> CompileResult | None:
    """Return an existing compile; None if there is none, or if it must not be run.

    private: its path in the private folder.
    """
    found = compile_directory.read(target)
    # A private one only counts if the folder in root is foreign; otherwise root gets its own.
    foreign = found is None and compile_directory.is_foreign(target)
    if foreign and private is not None:
        found = compile_directory.read(private)
    return None if found is None else CompileResult(found, cached=True, foreign=foreign)


def _updates_of(module: ModuleOp, model: MatchedModel, options: CompileOptions) -> ProgramUpdates:
    reads_words = has_half_gradients(model, options)
    form = UpdateForm(
        precision_of(module),
        model.measures,
        model.clipping,
        model.storage,
        reads_words,
        # A streaming program does not know whether the run's store has words: MemoryX writes them.
        writes_words=model.storage is not None and not options.is_streaming,
    )
    return ProgramUpdates(model.updates, model.states, form)


def _back_end(
    module: ModuleOp,
    model: MatchedModel,
    updates: ProgramUpdates,
    options: CompileOptions,
    checksum: str,
    observer: PassObserver,
) -> CompiledProgram:
    """Place the kernels, and generate the program."""
    observer.begin(PLACING)
    inputs = inputs_of(model, storage_of(module))
    batch = inputs[0].shape[0] * options.minibatches
    try:
        placed = _placed(model, options, batch)
    except TooLargeError as error:
        raise _with_whole(error, module, options) from error
    observer.begin(GENERATING)
    plan = _plan(module, model, placed, inputs, options, checksum)
    recorder = RecordingCode(model.written) if _reads_values(module, options) else None
    program = generate(
        placed.layout, placed.buffers, inputs, updates, checksum, plan.marks, recorder
    )
    if recorder is not None:
        of_updates = described_updates(plan, updates.optimizers)
        plan = _with_values(plan, options, recorder.values, of_updates)
    code = None
    if options.kernels == LLVM:
        is_of_bfloat16 = storage_of(module) in (None, BFLOAT16)
        assert instructions_of(options.products) is None or is_of_bfloat16, (
            "their words are multiplied"
        )
        code = program.kernels.kernel_files(options.products, observer.describes)
    if code is not None:
        share_of = program.kernels.share_of
        plan = msgspec.structs.replace(
            plan,
            machine_code_share=share_of(code.functions),
            bfloat16_share=share_of(code.manifest.in_pairs),
        )
    return CompiledProgram(placed.layout, plan, program, code)


def _with_whole(error: TooLargeError, module: ModuleOp, options: CompileOptions) -> TooLargeError:
    """Add the matrices that could not be sharded to the error of a model that does not fit."""
    most = options.part_bytes
    whole = [] if most is None else unsharded_matrices(module, most)
    return TooLargeError("; ".join([str(error), *whole]), error.fits, error.why)


def _group_bytes(model: MatchedModel, options: CompileOptions) -> int:
    """Return the size up to which layers are grouped; shards of a matrix must stay separate
    groups.
    """
    if options.minibatches_in_flight > 1:
        return 0  # one pipeline stage per layer
    is_cut = any(isinstance(op, ParameterOp) and op.part is not None for op in model.parameters)
    most = options.part_bytes if is_cut else options.max_group_bytes
    return options.group_bytes if most is None else min(options.group_bytes, most)


def _placed(model: MatchedModel, options: CompileOptions, batch: int) -> PlacedLayout:
    """Place everything, with the gradient order in which updates delay least.

    If that does not fit, use the order of reverse mode, which frees activations earlier, then
    recomputation if enabled.

    Raises: TooLargeError
    """
    group_bytes, parts = _group_bytes(model, options), options.micro_batches
    laid_out = partial(lay_out, model, group_bytes, parts, stored=options.stored_layers)
    errors: list[TooLargeError] = []
    if options.is_streaming and not model.measures:
        try:
            return place_model(model, laid_out(concurrent_updates=True), options, batch)
        except TooLargeError as error:
            errors.append(error)
    layout = laid_out()
    try:
        return place_model(model, layout, options, batch)
    except TooLargeError as error:
        again = None
        if options.recompute:
            alive_of = partial(alive_in, model=model)
            again = with_recomputation(layout, options.micro_batches, alive_of)
        if again is None:
            # The option that fits most samples determines the batch size in the error.
            raise max([error, *errors], key=lambda each: each.fits) from None
    return place_model(model, again, options, batch)


def inputs_of(model: MatchedModel, half: HalfFormat | None = None) -> tuple[InputSpec, ...]:
    """Return the arrays of a minibatch; half: the 16-bit format of mixed precision."""
    return tuple(
        InputSpec(
            op.symbol.data,
            shape_of(type_of(op.out)),
            dtype_of(type_of(op.out)),
            tuple(model.label_ranges.get(op, ())),
            tuple(model.number_ranges.get(op, ())),
            half if dtype_of(type_of(op.out)) == "float32" else None,
        )
        for op in model.inputs
    )


def _reads_values(module: ModuleOp, options: CompileOptions) -> bool:
    """Return whether the program records or measures values of kernels."""
    measures = options.number_ranges is not None and storage_of(module) is not None
    return measures or options.record_steps is not None


def _with_values(
    plan: Plan,
    options: CompileOptions,
    values: tuple[RecordedValue, ...],
    of_updates: tuple[RecordedValue, ...],
) -> Plan:
    """Return the plan with the values that its program records or measures, and those of
    updates.
    """
    steps, every = options.record_steps, options.number_ranges
    return msgspec.structs.replace(
        plan,
        recording=None if steps is None else RecordedSteps(*steps, (*values, *of_updates)),
        measuring=None if every is None else MeasuredSteps(every, values),
    )


def _plan(
    module: ModuleOp,
    model: MatchedModel,
    placed: PlacedLayout,
    inputs: tuple[InputSpec, ...],
    options: CompileOptions,
    checksum: str,
) -> Plan:
    layout, precision = placed.layout, precision_of(module)
    return Plan(
        compiler_version=VERSION,
        checksum=checksum,
        precision=precision,
        batch_size=options.parts * inputs[0].shape[0],
        minibatch_stride_bytes=placed.minibatch_stride_bytes,
        partial_offset_bytes=placed.partial_offset_bytes,
        visits=placed.visits,
        schedule=_schedule(placed.visits, options.minibatches_in_flight),
        arena_bytes=placed.arena_bytes,
        store_in_arena=not options.is_streaming,
        store=placed.store,
        buffers=tuple(placed.buffers),
        inputs=_inputs_of_batch(inputs, options.parts),
        parameters=layout.parameters,
        layers=layout.layers,
        groups=layout.groups,
        loss_buffer=LOSS.name if model.has_loss else None,
        loss_count=model.loss_count,
        counts_padding=model.counts_padding,
        outputs=tuple(map(_output, model.outputs)),
        learning_rate=next((u.learning_rate for u in model.updates.values()), None),
        clip_norm=model.clipping.clip_norm,
        loss_scaling=model.loss_scaling,
        floor_plan=placed.floor_plan,
        marks=layers_in_kernel_order(layout) if options.mark_layers else (),
        estimate=estimate_of(layout.layers, inputs, placed.floor_plan, options, precision),
        kept_offset_bytes=placed.kept_offset_bytes,
        recomputed=layout.recomputed,
        storage=storage_of(module),
        **options.recorded(),
    )


def _inputs_of_batch(inputs: Sequence[InputSpec], parts: int) -> tuple[InputSpec, ...]:
    """Return the arrays of a batch of several minibatches."""
    rows = parts * inputs[0].shape[0]
    return tuple(
        msgspec.structs.replace(spec, shape=(rows, *spec.shape[1:]))
        if parts > 1 and spec.shape
        else spec
        for spec in inputs
    )


def estimate_of(
    layers: Sequence[Layer],
    inputs: Sequence[InputSpec],
    floor_plan: Sequence[Region],
    options: CompileOptions,
    precision: str,
) -> Estimate:
    """Estimate the rate of placed layers; their work and `inputs` are those of a minibatch."""
    count = options.parts
    work = Work(
        layers=layers,
        pes={region.layer: region.rectangle.pes for region in floor_plan},
        input_bytes=count * sum(nbytes_of(spec.shape, spec.dtype) for spec in inputs),
        batch_size=count * inputs[0].shape[0],
        minibatch_size=inputs[0].shape[0],
        options=options,
        system=options.system,
        itemsize=np.dtype(precision).itemsize,
    )
    return estimate(work)


def _output(output: MatchedOutput) -> Output:
    found = output.dependence
    if found.axis is not None:
        place = {"axis": found.axis, "rows": found.rows, "outer": found.outer}
        return Output(output.name, output.array.name, Combine.SAMPLES, **place)
    combine = Combine.SUM if found.over is BatchRelation.PART else Combine.FIRST
    return Output(output.name, output.array.name, combine)


def _schedule(visits: Sequence[Visit], minibatches: int) -> tuple[MinibatchVisit, ...]:
    """Return the order of calls for several minibatches; a group is a stage of the pipeline."""
    if minibatches == 1:
        return ()
    stages = [min((*visit.groups, *visit.gradients), default=-1) for visit in visits]
    return interleave(stages, minibatches)
