"""Published throughput of CS-2 systems, and what the performance model says of it.

For the fit, FC-MNIST goes through the compiler and transformers are counted by formula. Beside it
stand estimates of the reference models' own graphs, in 16 bits as all published runs, at batches
that fit.
"""

import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import geometric_mean

from xdsl.dialects.builtin import ModuleOp

from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import CompileOptions, compile_model
from csrun.compiler.compile import inputs_of
from csrun.compiler.matching import validate_model
from csrun.compiler.plan.arena import alive_in, with_samples, with_store
from csrun.compiler.plan.footprint import footprint
from csrun.compiler.plan.memory_plan import place
from csrun.compiler.plan.performance_model import Constants, Work, estimate
from csrun.compiler.plan.recompute import with_recomputation
from csrun.compiler.plan.slots import place_groups
from csrun.compiler.plan.store_layout import lay_out
from csrun.estimator.model_trace import trace_model
from csrun.executable import Layer, PlanOptions, nbytes_of
from csrun.params import load
from csrun.site import load as load_site

CONFIGS = Path(__file__).parents[2] / "reference_models" / "fc_mnist" / "configs"
SYSTEM = load_site("local").systems[0]
HALF_BYTES, TOKEN_BYTES = 2, 4
BLOCK_BYTES = 34  # of a block's activations, a number of its output
WITHIN, LEAST = 1.5, 2.0  # promised factors, the second where figures differ among themselves
TRACED = 2  # samples of the graphs: all that samples have is a multiple


@dataclass(frozen=True)
class Transformer:
    """A stack of blocks. `vocabulary`: of an output layer over every token; 0 without one."""

    blocks: int
    width: int
    tokens: int
    vocabulary: int = 0


@dataclass(frozen=True)
class Row:
    """A published figure of a model in training.

    systems: CS-2s that share the batch. work: one system's part. informs: the constant that the
    figure says something of. is_run: measured, not itself an estimate. within: the factor that is
    the target between it and an estimate that does not know it.
    """

    model: str
    source: str
    samples_per_sec: float
    work: Callable[[], Work]
    systems: int = 1
    informs: str | None = None
    is_run: bool = True
    within: float = WITHIN


def implied(row: Row) -> float:
    """The constant that a row informs, were all of its time due to it."""
    rate, work = row.samples_per_sec / row.systems, row.work()
    if row.informs == "batch_overhead_s":
        return work.batch_size / rate
    return rate / estimate(work, Constants(1.0, 0.0)).compute_samples_per_sec


def fitted(rows: Iterable[Row]) -> Constants:
    """Each constant as the geometric mean of what the rows that inform it imply."""
    found: dict[str, list[float]] = {"efficiency": [], "batch_overhead_s": []}
    for row in rows:
        if row.informs:
            found[row.informs].append(implied(row))
    return Constants(**{name: geometric_mean(values) for name, values in found.items()})


def predicted(row: Row) -> float:
    """The row's samples/s from constants that no figure of its model has informed."""
    constants = fitted(other for other in ROWS if other.model != row.model)
    return row.systems * estimate(row.work(), constants).samples_per_sec


@cache
def fc_mnist(config: str) -> Work:
    """The work of a shipped configuration, compiled for a pipelined training."""
    from data import train_input_fn
    from model import model_fn
    from params import Params

    params = load(Params, CONFIGS / config)
    traced = trace_model(model_fn, train_input_fn(params), RunMode.TRAIN, params, "float32")
    options = CompileOptions(mode=ExecutionMode.PIPELINED, run_mode=RunMode.TRAIN, system=SYSTEM)
    with tempfile.TemporaryDirectory() as folder:
        plan = compile_model(traced.module, Path(folder), options).executable.plan
    return Work(
        layers=plan.layers,
        pes={region.layer: region.rectangle.pes for region in plan.floor_plan},
        input_bytes=sum(nbytes_of(spec.shape, spec.dtype) for spec in plan.inputs),
        batch_size=plan.batch_size,
        minibatch_size=plan.batch_size // plan.parts,
        options=plan,
        system=SYSTEM,
    )


def transformer(model: Transformer, batch: int, mode: ExecutionMode) -> Work:
    """The work of a transformer's blocks and output layer, at half precision.

    A block's matrices have 12 width^2 weights. A token costs it two FLOPs a weight and 4 tokens *
    width for the attention's two products; backward costs twice that. Between blocks go the
    outputs, and their gradients back. Norms, embeddings and pooling are left out.

    A streamed batch whose activations exceed the wafer's memory is computed with the blocks' inputs
    alone kept: each block's forward pass comes again, with its weights, before the backward one.
    A block has 34 bytes a number of its output, without attention's scores. GPT-J's 65 samples have
    500 GB of them, and 30 GB of inputs.

    Source: Kaplan et al. 2020, section 2.1; Chowdhery et al. 2022, appendix B; of activations,
    Korthikanti et al. 2022, section 4.1; that the original recomputes them, Cerebras, Software
    Release 2.0 (2023), on memory offload; that 65 samples are the most that fit, Model Zoo R1.7.1,
    gptj/configs/params_gptj_6B.yaml
    """
    rows = batch * model.tokens
    weights, attention = 12 * model.width**2, 4 * model.tokens * model.width
    kept_bytes = BLOCK_BYTES * rows * model.width * model.blocks
    is_again = mode is ExecutionMode.WEIGHT_STREAMING and kept_bytes > SYSTEM.sram_bytes
    layers = [
        _layer(f"block_{index}", rows, weights, attention, model.width, is_again)
        for index in range(model.blocks)
    ]
    if model.vocabulary:
        layers.append(_layer("out", rows, model.vocabulary * model.width, 0, model.width, False))
    return Work(
        layers=layers,
        pes={},
        input_bytes=rows * TOKEN_BYTES,
        batch_size=batch,
        minibatch_size=batch,
        options=PlanOptions(mode=mode, run_mode=RunMode.TRAIN),
        system=SYSTEM,
    )


def _layer(name: str, rows: int, weights: int, attention: int, width: int, is_again: bool) -> Layer:
    flops, crossing = rows * (2 * weights + attention), 2 * rows * width * HALF_BYTES
    return Layer(
        name, "block", 0, (), flops, (2 + is_again) * flops, weights * HALF_BYTES, crossing,
        crossing, loads=2 + is_again,
    )  # fmt: skip


BERT_LARGE = Transformer(blocks=24, width=1024, tokens=128)  # its output layer sees masked tokens
GPT_J = Transformer(blocks=28, width=4096, tokens=2048, vocabulary=50400)
FC_500_300 = partial(fc_mnist, "params_500_300.yaml")

ROWS = (
    # R1.1 took 1.34 times as long for the same steps, and only 10 x 50 predicts both.
    Row("FC-MNIST 500-300", "R1.3", 479_189, FC_500_300, informs="batch_overhead_s", within=LEAST),
    Row("FC-MNIST 500-300", "R1.1", 358_417, FC_500_300, informs="batch_overhead_s"),
    Row("FC-MNIST 500-300", "R1.1, a compile's estimate", 1_270_553, FC_500_300, is_run=False),
    # A Rate of 132,000 to 150,000 was logged.
    Row("FC-MNIST 10 x 50", "R1.7", 140_000, partial(fc_mnist, "params.yaml"),
        informs="batch_overhead_s"),
    Row("BERT-large, 128 tokens", "pipelined", 6_370,
        partial(transformer, BERT_LARGE, 1024, ExecutionMode.PIPELINED), informs="efficiency"),
    Row("GPT-J 6B, 2048 tokens", "streaming, two systems", 21.96,
        partial(transformer, GPT_J, 130 // 2, ExecutionMode.WEIGHT_STREAMING),
        systems=2, informs="efficiency"),
)  # fmt: skip


@dataclass(frozen=True)
class Graph:
    """A published figure of a reference model, whose own graph is estimated.

    systems: CS-2s that share the batch. recomputes: the original kept no activations of blocks, as
    `transformer` shows.
    """

    model: str
    config: str
    mode: ExecutionMode
    batch: int
    samples_per_sec: float
    systems: int = 1
    sizes: tuple[tuple[str, int], ...] = ()
    recomputes: bool = False


GRAPHS = (
    Graph("bert", "params_large.yaml", ExecutionMode.PIPELINED, 1024, 6_370,
          sizes=(("sequence_length", 128),)),
    Graph("gptj", "params_6B.yaml", ExecutionMode.WEIGHT_STREAMING, 130, 21.96, systems=2,
          recomputes=True),
)  # fmt: skip


def fitting(graph: Graph, module: ModuleOp) -> list[Work]:
    """The work of a system at batches that fit it, up to its share of the published one.

    They are the powers of two and, last, the largest. module: traced for a batch of TRACED samples;
    everything else is scaled from there
    """
    options = CompileOptions(mode=graph.mode, run_mode=RunMode.TRAIN, system=SYSTEM)
    model = validate_model(module)
    layout = lay_out(model, options.group_bytes)
    if graph.recomputes:
        again = with_recomputation(layout, options.micro_batches, partial(alive_in, model=model))
        assert again is not None, "blocks can be computed again"
        layout = again
    layout, store = with_store(layout, model, options)
    alive, layers = alive_in(layout, model), footprint(layout, store, options)
    front = store.nbytes
    if graph.mode is ExecutionMode.WEIGHT_STREAMING:
        order = [group for function in layout.functions for group in function.visit.groups]
        _, front = place_groups([group.sent_bytes for group in layout.groups], order)

    def nbytes(samples: int) -> int:
        scaled = with_samples(alive, model, TRACED, samples)
        return max(front + place(scaled, 0)[1], layers.needed_bytes(scaled))

    def work(samples: int) -> Work:
        plan = layers.floor_plan(with_samples(alive, model, TRACED, samples))
        inputs = sum(nbytes_of(spec.shape, spec.dtype) for spec in inputs_of(model))
        return Work(
            layers=layout.layers,
            pes={region.layer: region.rectangle.pes for region in plan},
            input_bytes=inputs * samples // TRACED,
            batch_size=samples,
            minibatch_size=TRACED,  # what a layer counts is of so many samples
            options=options,
            system=SYSTEM,
            itemsize=4,
        )

    most = range(1, graph.batch // graph.systems + 1)
    largest = bisect_right(most, SYSTEM.sram_bytes, key=nbytes)
    powers = [2**power for power in range(largest.bit_length()) if 2**power < largest]
    return [work(samples) for samples in (*powers, largest)]
