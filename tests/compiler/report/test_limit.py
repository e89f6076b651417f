"""Limits named by the reports, and whether the suggested remedy raises them."""

from dataclasses import replace

import msgspec
import pytest
from support.programs import SYSTEM, Network, options_of

from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import compile_model
from csrun.compiler.plan.performance_model import Constants, Work, estimate
from csrun.compiler.report.limit import Limit, work_of
from csrun.executable import Layer, PlanOptions

# 1,000 PEs of 2 FLOPs a cycle at 1 GHz: 2e12 FLOP/s; 1e9 bytes a second of I/O.
SMALL = msgspec.structs.replace(
    SYSTEM, usable_cores=1000, multiply_adds_per_core_cycle=1, clock_hz=1e9, io_gbit_per_s=8.0
)
IDEAL = Constants(efficiency=1.0, batch_overhead_s=0.0)
OVERHEAD = Constants(efficiency=1.0, batch_overhead_s=1e-3)


def layer(name, flops, weight_bytes=64, crossing_bytes=64):
    return Layer(
        name, "fc", 0, (), flops // 2, flops // 2, weight_bytes, crossing_bytes, crossing_bytes, 2
    )


def limit_of(*layers, constants=IDEAL, arena_bytes=0, **others):
    given = {
        "layers": layers, "pes": {}, "input_bytes": 10, "batch_size": 10, "minibatch_size": 10,
        "system": SMALL,
    }  # fmt: skip
    options = {"mode": ExecutionMode.PIPELINED, "run_mode": RunMode.TRAIN}
    options |= {name: others.pop(name) for name in PlanOptions.__struct_fields__ if name in others}
    work = Work(**{**given, **others}, options=PlanOptions(**options))
    return Limit(work, estimate(work, constants), arena_bytes, constants)


STREAMING = {"mode": ExecutionMode.WEIGHT_STREAMING}


def test_the_fixed_time_of_a_batch():
    """400 FLOPs a sample, 200 at a time, take 2 ns; 20

    (1 ms + 40 ns) is 19,999 samples/s.
    """
    limit = limit_of(layer("a", 4000), constants=OVERHEAD)
    assert limit.sentence == (
        "Limited by fixed overhead, 1 ms per batch, nearly 100 % of its time: "
        "a larger batch_size raises the rate, 20 to an estimated 19,999 "
        "samples/s."
    )
    assert limit.total == (
        "A batch of 10 takes 20 ns for the slowest kernel, plus 1 ms of overhead: "
        "10,000 compute samples/s."
    )


def test_a_larger_batch_that_may_not_fit_says_what_this_one_takes():
    memory = SMALL.sram_bytes
    fits = limit_of(layer("a", 4000), constants=OVERHEAD, arena_bytes=memory // 2)
    assert "if it fits" not in fits.sentence
    tight = limit_of(layer("a", 4000), constants=OVERHEAD, arena_bytes=memory * 2 // 3)
    assert tight.sentence.endswith(", if it fits: this one takes 32.8 MB of 49.2 MB.")


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (
            limit_of(layer("a", 4000), layer("b", 8_000_000), pes={"a": 100, "b": 900}),
            "computation, mostly in layer b: PEs are assigned by work",
        ),
        (
            limit_of(layer("a", 4000), pes={"a": 1000}, input_bytes=1),
            "layer a, where a sample occupies 100 of 1,000 PEs at a time: replicas of the "
            "model (runconfig.multireplica) raise the rate",
        ),
        (
            limit_of(layer("a", 4000), pes={"a": 400}, input_bytes=1, replicas=2, minibatch_size=5),
            "occupies 200 of 400 PEs at a time: more replicas of the model (larger batch_size) "
            "raise the rate",
        ),
        (
            limit_of(layer("a", 8_000_000), **STREAMING),
            "computation: each layer uses all PEs in turn",
        ),
        (
            limit_of(layer("a", 4000), layer("b", 40), input_bytes=1_000_000, **STREAMING),
            "the I/O of inputs, 100 kB per sample: a smaller type or fewer features raise the rate",
        ),
        (
            limit_of(layer("a", 4000, weight_bytes=1_000_000), **STREAMING),
            "the I/O of weights, 3 MB per batch, plus 10 B of inputs: a larger batch_size raises "
            "the rate, 20 to an estimated 6,667 samples/s",
        ),
        (
            limit_of(layer("a", 4000, crossing_bytes=80_000_000), pes={"a": 100}),
            "the links out of layer a's PEs, 8 MB of activations per sample: a layer with fewer "
            "units raises the rate",
        ),
        (
            limit_of(
                layer("a", 4000, weight_bytes=1_000_000),
                pes={"a": 100},
                replicas=2,
                minibatch_size=5,
            ),
            "the sum of layer a's gradients over 2 replicas, once per batch: a larger batch_size",
        ),
    ],
)
def test_each_limit_has_its_remedy(limit, words):
    assert words in limit.sentence


def test_the_rate_of_a_larger_batch_is_that_of_its_compile(tmp_path):
    network = Network((784, 50, 50, 10), batch=128)
    plan = compile_model(network.trace(), tmp_path, options_of()).executable.plan
    larger = compile_model(replace(network, batch=256).trace(), tmp_path, options_of())
    rate = larger.executable.plan.estimate.samples_per_sec
    assert f"256 to an estimated {rate:,.0f} samples/s" in Limit.of(plan, SYSTEM).sentence


@pytest.mark.parametrize("mode", ExecutionMode)
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_plan_tells_the_work_that_its_estimate_is_of(tmp_path, mode, replicas):
    options = options_of(mode, replicas=replicas if mode is ExecutionMode.PIPELINED else 1)
    plan = compile_model(Network().trace(), tmp_path, options).executable.plan
    assert estimate(work_of(plan, SYSTEM)) == plan.estimate


def test_both_reports_open_with_the_sentence_and_explain_the_total(tmp_path):
    executable = compile_model(Network().trace(), tmp_path, options_of()).executable
    limit = Limit.of(executable.plan, SYSTEM)
    text = " ".join((executable.directory / "compile_report.txt").read_text().split())
    page = (executable.directory / "compile_report.html").read_text().replace("&#39;", "'")
    for report in (text, page):
        assert limit.sentence in report
        assert limit.total in report
