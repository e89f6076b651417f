"""Performance model: arithmetic worked out by hand, and published figures not used to fit it."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from bench.published import GPT_J, ROWS, fitted, predicted, transformer
from support.programs import Network, TiedNetwork, options_of

from csrun.base.half_formats import FLOAT16
from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import compile_model
from csrun.compiler.matching import validate_model
from csrun.compiler.plan.performance_model import FITTED, Constants, Work, estimate
from csrun.compiler.plan.store_layout import lay_out
from csrun.executable import Layer, PlanOptions
from csrun.site import load as load_site

BENCH = Path(__file__).parents[2] / "bench"
# 1,000 PEs of 2 FLOPs a cycle at 1 GHz: 2e12 FLOP/s; 1e9 bytes a second of I/O.
SYSTEM_OF_SITE = load_site("local").systems[0]
SYSTEM = msgspec.structs.replace(
    SYSTEM_OF_SITE,
    usable_cores=1000,
    multiply_adds_per_core_cycle=1,
    clock_hz=1e9,
    io_gbit_per_s=8.0,
)
IDEAL = Constants(efficiency=1.0, batch_overhead_s=0.0)


def layer(
    name: str, flops: int, weight_bytes: int = 64, crossing_bytes: int = 64, loads: int = 2
) -> Layer:
    return Layer(
        name,
        "fc",
        0,
        (),
        flops // 2,
        flops // 2,
        weight_bytes,
        crossing_bytes,
        crossing_bytes,
        loads,
    )


def work(*layers: Layer, **others) -> Work:
    given = {
        "layers": layers, "pes": {}, "input_bytes": 1000, "batch_size": 10, "minibatch_size": 10,
        "system": SYSTEM,
    }  # fmt: skip
    options = {"mode": ExecutionMode.PIPELINED, "run_mode": RunMode.TRAIN}
    options |= {name: others.pop(name) for name in PlanOptions.__struct_fields__ if name in others}
    return Work(**{**given, **others}, options=PlanOptions(**options))


STREAMING = {"mode": ExecutionMode.WEIGHT_STREAMING}


def test_pipelined_the_slowest_layer_sets_the_pace():
    found = estimate(work(layer("a", 40000), layer("b", 40000), pes={"a": 100, "b": 400}), IDEAL)
    # 4,000 FLOPs a sample on 2e11 and on 8e11 FLOP/s
    assert [one.compute_samples_per_sec for one in found.layers] == pytest.approx([5e7, 2e8])
    assert found.compute_samples_per_sec == pytest.approx(5e7)
    assert [one.active_pes for one in found.layers] == [100, 400]
    assert found.active_pes == 0.5


@pytest.mark.parametrize(
    ("mode", "working"), [(ExecutionMode.PIPELINED, 100), (ExecutionMode.WEIGHT_STREAMING, 1000)]
)
def test_pipelined_no_more_pes_work_than_a_sample_has_multiply_adds(mode, working):
    """200 of 400 FLOPs a sample are forward: 100 multiply-adds; the layer has 1,000 PEs."""
    found = estimate(work(layer("a", 4000), mode=mode), IDEAL)
    assert found.compute_samples_per_sec == pytest.approx(working * 2e9 / 400)
    assert found.layers[0].active_pes == 1000


def test_without_a_placement_the_area_follows_the_flops():
    found = estimate(work(layer("a", 3000), layer("b", 1000)), IDEAL)
    assert [one.active_pes for one in found.layers] == [750, 250]
    assert found.active_pes == 1.0


def test_streaming_layers_take_turns_on_the_whole_wafer():
    found = estimate(work(layer("a", 4000), layer("b", 4000), **STREAMING), IDEAL)
    assert [one.active_pes for one in found.layers] == [1000, 1000]
    assert found.compute_samples_per_sec == pytest.approx(2e12 / 800)
    assert found.active_pes == 1.0


@pytest.mark.parametrize(
    ("run_mode", "loads", "nbytes"),
    [(RunMode.TRAIN, (2, 1), (6000, 2000)), (RunMode.EVAL, (1, 2), (2000, 2000))],
)
def test_streaming_pays_for_each_load_of_weights_and_once_for_gradients(run_mode, loads, nbytes):
    """2,000 and 1,000 bytes of weights; in training as many bytes of gradients are sent back."""
    layers = [
        layer(name, 4000, weight_bytes=size, loads=times)
        for name, size, times in zip("ab", (2000, 1000), loads, strict=True)
    ]
    found = estimate(work(*layers, run_mode=run_mode, **STREAMING), IDEAL)
    assert found.transmission_samples_per_sec == pytest.approx(10 * 1e9 / (1000 + sum(nbytes)))
    alone = [one.transmission_samples_per_sec for one in found.layers]
    assert alone == pytest.approx([10 * 1e9 / n for n in nbytes])


def test_several_systems_share_the_work_and_the_inputs_and_each_gets_all_weights():
    layers = [layer("a", 4000, weight_bytes=2000), layer("b", 4000, weight_bytes=1000)]
    one, four = (estimate(work(*layers, systems=count, **STREAMING), IDEAL) for count in (1, 4))
    assert four.compute_samples_per_sec == pytest.approx(4 * 2e12 / 800)
    sent = 1000 / 4 + 3 * (2000 + 1000)  # twice in, once out
    assert four.transmission_samples_per_sec == pytest.approx(10 * 1e9 / sent)
    assert four.active_pes == one.active_pes == 1.0
    rate = four.samples_per_sec / 4  # of each
    assert four.compute_utilization == pytest.approx(800 * rate / 2e12)


def test_weights_that_nobody_reads_cost_nothing():
    layers = layer("a", 4000, weight_bytes=2000), layer("unused", 0, weight_bytes=9000, loads=0)
    found = estimate(work(*layers, run_mode=RunMode.EVAL, **STREAMING), IDEAL)
    assert found.transmission_samples_per_sec == pytest.approx(10 * 1e9 / (1000 + 2 * 2000))


def test_weights_and_activations_travel_at_half_precision():
    one = layer("a", 4000, weight_bytes=2000, crossing_bytes=80_000)
    for options in (STREAMING, {"pes": {"a": 100}}):
        half, single = (
            estimate(work(one, input_bytes=0, itemsize=size, **options), IDEAL) for size in (2, 4)
        )
        ratio = single.transmission_samples_per_sec / half.transmission_samples_per_sec
        assert ratio == pytest.approx(2)


def test_a_tied_weight_comes_as_often_as_its_visits_load_it(tmp_path):
    """At the end of the forward pass the last group stays loaded for the backward pass.

    The gradients of the first layer do not need its weights.
    """
    sizes = (64, 32, 32, 32, 64)
    options = (tmp_path, ExecutionMode.WEIGHT_STREAMING, 10_000)
    tied = TiedNetwork(sizes).compile(*options).plan
    assert {layer.name: layer.loads for layer in tied.layers} == {
        "table": 2,
        "h/0/dense": 2,
        "h/1/dense": 2,
    }
    untied = Network(sizes).compile(*options).plan
    assert [layer.loads for layer in untied.layers] == [1, 2, 2, 1]


@pytest.mark.parametrize("storage", [None, FLOAT16], ids=["float32", "float16"])
def test_what_crosses_is_what_other_layers_read(storage):
    """16 rows of float32: outputs sent forward and gradients sent back.

    Integers count as much: one value each.
    """
    network = Network(sizes=(12, 7, 9, 5), batch=16, storage=storage)
    layout = lay_out(validate_model(network.trace()), 1)
    rows = {layer.name: layer.crossing_bytes / (16 * 4) for layer in layout.layers}
    padded = {name: pytest.approx(units, abs=1) for name, units in rows.items()}
    assert padded == {"dense": 7, "dense_1": 9 + 7, "dense_2": 9}


@pytest.mark.parametrize(("run_mode", "sums"), [(RunMode.TRAIN, 1), (RunMode.EVAL, 0)])
def test_replicas_work_at_once_and_sum_their_gradients(run_mode, sums):
    """Four replicas of 100 PEs for a batch of 10; ten links of 4 bytes per ns from each.

    A ring of four moves 3/2 of 2,000 bytes once per 2.5 samples of each: 1,200 a sample.
    """
    one = layer("a", 4000, weight_bytes=2000, crossing_bytes=80_000 // 4)
    four = work(one, pes={"a": 100}, replicas=4, minibatch_size=2.5, run_mode=run_mode)
    found = estimate(four, IDEAL)
    assert [x.active_pes for x in found.layers] == [400]
    assert found.compute_samples_per_sec == pytest.approx(4 * 2e11 / 1600)
    (alone,) = found.layers
    assert alone.transmission_samples_per_sec == pytest.approx(4 * 4e10 / (8000 + sums * 1200))


def test_pipelined_the_inputs_or_a_layers_border_bound_the_transmission():
    few = work(layer("a", 4000, crossing_bytes=80), pes={"a": 100})
    assert estimate(few, IDEAL).transmission_samples_per_sec == pytest.approx(1e9 / 100)
    many = work(layer("a", 4000, crossing_bytes=80_000), pes={"a": 100})
    # ten links of 4 bytes a nanosecond for 8,000 bytes a sample
    assert estimate(many, IDEAL).transmission_samples_per_sec == pytest.approx(4e10 / 8000)


def test_a_batch_has_its_overhead_and_minibatches_add_up():
    flops = 8_000_000_000  # five times that are 20 ms of the peak, 100 ms of a fifth of it
    found = estimate(work(layer("a", flops), minibatch_size=2), Constants(0.2, 0.1))
    assert found.compute_samples_per_sec == pytest.approx(10 / (0.1 + 0.1), rel=1e-3)
    assert found.samples_per_sec == found.compute_samples_per_sec
    # half of the time at a fifth of the peak
    assert found.compute_utilization == pytest.approx(0.1, rel=1e-3)
    assert found.layers[0].compute_utilization == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize("mode", list(ExecutionMode))
@pytest.mark.parametrize("run_mode", list(RunMode))
def test_every_compile_has_an_estimate_of_each_layer(tmp_path, mode, run_mode):
    network = Network()
    options = options_of(mode, run_mode)
    plan = compile_model(network.trace(run_mode), tmp_path, options).executable.plan
    found = plan.estimate
    assert [one.layer for one in found.layers] == [one.name for one in plan.layers]
    assert (
        0
        < found.samples_per_sec
        == min(found.compute_samples_per_sec, found.transmission_samples_per_sec)
    )
    for one in found.layers:
        assert found.samples_per_sec <= one.samples_per_sec < float("inf")
        assert 0 < one.compute_utilization < 1
    assert 0 < found.active_pes <= 1


def test_the_constants_are_those_of_the_published_rows(fc_mnist):
    found = fitted(ROWS)
    assert found.efficiency == pytest.approx(FITTED.efficiency, rel=5e-3)
    assert found.batch_overhead_s == pytest.approx(FITTED.batch_overhead_s, rel=5e-3)
    # By hand: FC-MNIST's batches over their rates.
    by_hand = (256 / 479_189 * 256 / 358_417 * 128 / 140_000) ** (1 / 3)
    assert found.batch_overhead_s == pytest.approx(by_hand)


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r.is_run], ids=lambda r: f"{r.model} {r.source}"
)
def test_a_published_figure_is_met_by_the_others(fc_mnist, row):
    assert 1 / row.within < predicted(row) / row.samples_per_sec < row.within


def test_a_streamed_batch_recomputes_blocks_that_do_not_fit():
    """GPT-J: 1.09 GB for each block's input, 17 times that within a block; 4/3 of the FLOPs."""
    streaming = ExecutionMode.WEIGHT_STREAMING
    one, all_ = (transformer(GPT_J, batch, streaming).layers[0] for batch in (1, 65))
    assert (one.backward_flops, one.loads) == (2 * one.forward_flops, 2)
    assert (all_.backward_flops, all_.loads) == (3 * all_.forward_flops, 3)
    assert all_.forward_flops == 65 * one.forward_flops
    inputs = 65 * GPT_J.tokens * GPT_J.width * 2 * GPT_J.blocks
    assert inputs < SYSTEM_OF_SITE.sram_bytes < 17 * inputs


def test_the_benchmark_shows_every_row_and_passes(tmp_path):
    lines = subprocess.run(
        [sys.executable, "estimates.py"], cwd=BENCH, check=True, capture_output=True, text=True
    ).stdout
    (tmp_path / "results.jsonl").write_text(lines)
    table = subprocess.run(
        [sys.executable, "table.py", str(tmp_path / "results.jsonl")],
        cwd=BENCH, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for figure in ("479,189", "358,417", "1,270,553", "140,000", "6,370", "21.96"):
        assert f"published {figure} " in table
    assert table.count("| ≥ 0.666667, ≤ 1.5 |") == 4
    assert table.count("| ≥ 0.5, ≤ 2 |") == 1
