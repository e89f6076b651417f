"""Memory of each layer, and the areas it requires in a compiled model."""

from itertools import combinations, pairwise

import msgspec
import pytest
from support.programs import SYSTEM, Network, options_of
from support.rectangles import apart, inside

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import CompileError, compile_model
from csrun.compiler.matching import match_kernels
from csrun.compiler.passes import run_passes
from csrun.compiler.plan.floor_plan import Wire, usable_part
from csrun.compiler.plan.footprint import footprint
from csrun.compiler.plan.store_layout import lay_out
from csrun.executable import StoreLayout
from csrun.nn.tracer import Tracer

PART = usable_part(SYSTEM)


def test_operators_without_weights_live_with_the_layer_before_them():
    module = Network(dropout=0.1).trace()
    run_passes(module)
    store = StoreLayout(0, 0, 0, (("momentum", 0),))
    found = footprint(lay_out(match_kernels(module), group_bytes=1), store, options_of())
    assert found.wires == (Wire(0, 1), Wire(1, 2))
    homes = {"dense/mm": 0, "dropout/dropout_mask": 0, "dropout_1/dropout_mask/words": 1}
    at_the_end = {"loss": 2, "model/log_softmax_backward_data": 2, "dense_2/mm": 2}
    assert homes | at_the_end == {name: found.home_of[name] for name in homes | at_the_end}
    assert found.weight_copies == 3  # with gradients and momentum


def test_a_norms_activations_lie_where_the_layer_before_it_works():
    """A norm has only small weights; separate PEs would be idle most of the time."""
    specs = [("features", (16, 12), "float32"), ("labels", (16,), "int32")]
    with Tracer("float32") as tracer:
        features, labels = (tracer.input(*spec) for spec in specs)
        x = nn.LayerNorm(name="norm")(nn.Dense(9, name="wide")(features))
        loss = nn.softmax_cross_entropy(nn.Dense(5, name="out")(x), labels)
        module = tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [])
    run_passes(module)
    layout = lay_out(match_kernels(module), group_bytes=1)
    found = footprint(layout, StoreLayout(0, 0, 0, ()), options_of())
    names = [layer.name for layer in found.layers]
    assert names == ["wide", "norm", "out"]
    norms = {array for array in found.home_of if array.startswith("norm/")}
    assert norms
    assert {names[found.home_of[array]] for array in norms} == {"wide"}
    assert [layer.crossing_bytes > 0 for layer in found.layers] == [True, False, True]
    assert layout.layers[1].forward_flops > 0  # its line of the report stays its own


@pytest.mark.parametrize("run_mode", RunMode)
def test_a_pipelines_areas_go_by_the_work_of_its_layers(tmp_path, run_mode):
    """Areas are proportional to FLOPs: for a dense layer, its weights.

    Training adds the gradients of the weights and, after the first layer, of the input.
    """
    network = Network(sizes=(200, 400, 100, 800, 10), batch=64)
    plan = network.compile(tmp_path, ExecutionMode.PIPELINED, run_mode=run_mode).plan
    assert [r.layer for r in plan.floor_plan] == [layer.name for layer in plan.layers]
    rectangles = [region.rectangle for region in plan.floor_plan]
    assert all(apart(a, b) for a, b in combinations(rectangles, 2))
    assert all(inside(r, PART) for r in rectangles)
    products = [a * b for a, b in pairwise(network.sizes)]
    if run_mode is RunMode.TRAIN:
        products = [n * (3 if i else 2) for i, n in enumerate(products)]
    areas = [r.pes / sum(r.pes for r in rectangles) for r in rectangles]
    assert areas == pytest.approx([n / sum(products) for n in products], rel=0.1)


def test_replicas_lie_apart_and_all_alike(tmp_path):
    network = Network(sizes=(200, 400, 100, 10), batch=8)
    options = options_of(replicas=6)
    plan = compile_model(network.trace(), tmp_path, options).executable.plan
    rectangles = [region.rectangle for region in plan.floor_plan]
    assert len(rectangles) == 6 * 3
    assert all(apart(a, b) for a, b in combinations(rectangles, 2))
    assert all(inside(r, PART) for r in rectangles)
    by_replica = [[r for r in plan.floor_plan if r.replica == number] for number in range(6)]
    for regions in by_replica:
        assert [r.layer for r in regions] == [layer.name for layer in plan.layers]
        shapes = [(r.rectangle.width, r.rectangle.height) for r in regions]
        assert shapes == [(r.rectangle.width, r.rectangle.height) for r in by_replica[0]]
    assert plan.placed_pes > 0.9 * PART.pes
    assert plan.estimate.active_pes == pytest.approx(plan.placed_pes / SYSTEM.usable_cores)


def test_replicas_that_do_not_fit_together_are_refused(tmp_path):
    """Four replicas fit 40 x 40 cores of 1 KiB, a hundred with the same weights do not."""
    network = Network(sizes=(64, 64, 8), batch=1)
    small = msgspec.structs.replace(
        SYSTEM, fabric_width=40, fabric_height=40, usable_cores=1600, sram_kb_per_core=1
    )
    compile_model(network.trace(), tmp_path, options_of(system=small, replicas=4))
    with pytest.raises(
        CompileError, match=r"layer dense needs [\d,]+ bytes of [\d,]+ on the wafer"
    ):
        compile_model(network.trace(), tmp_path, options_of(system=small, replicas=100))


def test_in_weight_streaming_each_layer_has_the_whole_wafer(tmp_path):
    plan = Network().compile(tmp_path, ExecutionMode.WEIGHT_STREAMING).plan
    assert [r.layer for r in plan.floor_plan] == [layer.name for layer in plan.layers]
    assert {region.rectangle for region in plan.floor_plan} == {PART}


@pytest.mark.parametrize("minibatches", [1, 4])
def test_a_layer_keeps_its_weights_four_times_and_its_buffers_on_pes_of_its_own(
    tmp_path, minibatches
):
    """Cores of 1 KiB, with momentum: weights, gradients, momentum, and partial gradients."""
    network = Network(sizes=(256, 512, 64, 8), batch=16)
    small = msgspec.structs.replace(SYSTEM, sram_kb_per_core=1)
    options = options_of(system=small, minibatches_in_flight=minibatches)
    plan = compile_model(network.trace(), tmp_path, options).executable.plan
    copies = 3 if minibatches == 1 else 4
    for layer, region, units in zip(plan.layers, plan.floor_plan, network.sizes[1:], strict=True):
        outputs = 4 * minibatches * network.batch * units
        assert region.rectangle.pes * 1024 >= copies * layer.weight_bytes + outputs


def test_layers_of_a_pipeline_share_no_memory_as_they_do_in_the_arena(tmp_path):
    """Model whose arena fits to the last byte, but whose separate layers do not."""
    network = Network(sizes=(64, *[64] * 8, 8), batch=64)
    arena = network.compile(tmp_path, ExecutionMode.PIPELINED).plan.arena_bytes
    cores = -(-arena // 1024)
    options = options_of(
        system=msgspec.structs.replace(SYSTEM, sram_kb_per_core=1, usable_cores=cores)
    )
    with pytest.raises(CompileError, match=rf"has {cores * 1024:,}: use weight streaming .* or "):
        compile_model(network.trace(), tmp_path, options)


@pytest.mark.parametrize("mode", ExecutionMode)
def test_a_model_without_weights_has_no_layers_to_place(tmp_path, mode):
    with Tracer("float32") as tracer:
        x = tracer.input("features", (64, 6), "float32")
        module = tracer.finish(RunMode.PREDICT, None, None, [("out", nn.relu(x))])
    small = msgspec.structs.replace(SYSTEM, sram_kb_per_core=1, usable_cores=1)
    with pytest.raises(CompileError, match=r"layer model needs [\d,]+ bytes .* batch_size to \d"):
        compile_model(module.clone(), tmp_path, options_of(mode, RunMode.PREDICT, system=small))
    done = compile_model(module, tmp_path, options_of(mode, RunMode.PREDICT))
    assert done.executable.plan.floor_plan == ()
