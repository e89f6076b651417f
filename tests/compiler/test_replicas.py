"""Number of replicas: the choice from one trace equals that from compiling every number."""

import re

import msgspec
import pytest
from support.programs import SYSTEM, Network, options_of
from support.sites import SLOWLY_LINKED

from csrun import nn
from csrun.base.mode import RunMode
from csrun.compiler import (
    CompileError,
    ReplicaChoice,
    choose_replicas,
    chosen_before,
    compile_model,
    question_of,
)
from csrun.nn.tracer import Tracer

pytestmark = pytest.mark.usefixtures("no_texts")  # compiles of which nobody reads a text

BATCH = 256


def compiled_rates(root, sizes, **options):
    """Estimated samples/s of compiles with each number of replicas that fits."""
    rates = {}
    for replicas in (2**n for n in range(BATCH.bit_length())):
        network = Network(sizes, BATCH // replicas)
        wanted = options_of(replicas=replicas, **options)
        run_mode = wanted.run_mode
        try:
            plan = compile_model(network.trace(run_mode), root, wanted).executable.plan
        except CompileError:
            continue
        rates[replicas] = plan.estimate.samples_per_sec
    return rates


@pytest.mark.parametrize("run_mode", [RunMode.TRAIN, RunMode.EVAL])
@pytest.mark.parametrize("sizes", [(2, 400, 2), (12, 40, 30, 20, 5), (784, 5, 10)])
def test_the_choice_is_the_fewest_that_are_as_fast_as_the_fastest(tmp_path, sizes, run_mode):
    options = {"system": SLOWLY_LINKED, "run_mode": run_mode}
    rates = compiled_rates(tmp_path, sizes, **options)
    choice = choose_replicas(Network(sizes, BATCH).trace(run_mode), options_of(**options))
    assert choice.replicas > 1
    assert choice.most == max(rates)
    best = max(rates.values())
    assert rates[choice.replicas] > 0.98 * best
    assert all(rate < best for replicas, rate in rates.items() if replicas < choice.replicas)
    assert choice.gain == pytest.approx(rates[choice.replicas] / rates[1], rel=0.02)


def test_where_a_batchs_fixed_time_decides_one_is_enough():
    assert choose_replicas(Network(batch=8).trace(), options_of()) == ReplicaChoice(1, 8, 1.0)


def test_gradients_that_take_longer_than_they_save_keep_it_at_one():
    """1.25 MB of weights in each replica, whose gradients are summed after eight samples."""
    network = Network(sizes=(784, 400, 10), batch=8)
    assert choose_replicas(network.trace(), options_of(system=SLOWLY_LINKED)).replicas == 1


def test_no_more_than_fit(tmp_path):
    """40 x 40 cores of 1 KiB; each replica holds all weights."""
    small = msgspec.structs.replace(
        SLOWLY_LINKED, fabric_width=40, fabric_height=40, usable_cores=1600, sram_kb_per_core=1
    )
    sizes = (2, 400, 2)
    rates = compiled_rates(tmp_path, sizes, system=small)
    choice = choose_replicas(Network(sizes, BATCH).trace(), options_of(system=small))
    assert 1 < choice.replicas <= choice.most == max(rates) < BATCH


def test_each_replica_has_its_minibatches_in_flight():
    """The trace is of one minibatch; four in flight leave a quarter of the batch for replicas."""
    options = options_of(system=SYSTEM, minibatches_in_flight=4)
    assert choose_replicas(Network(batch=4).trace(), options).most == 4


def test_a_model_that_does_not_fit_once_is_left_to_its_compile():
    tiny = msgspec.structs.replace(SYSTEM, usable_cores=1, sram_kb_per_core=1)
    module = Network(batch=64).trace()
    options = options_of(system=tiny)
    before = str(module)
    assert choose_replicas(module, options) == ReplicaChoice(1, 1, 1.0)
    assert str(module) == before


def test_a_model_without_weights_has_one():
    with Tracer("float32") as tracer:
        x = tracer.input("features", (64, 6), "float32")
        module = tracer.finish(RunMode.PREDICT, None, None, [("out", nn.relu(x))])
    assert choose_replicas(module, options_of(run_mode=RunMode.PREDICT)).replicas == 1


def normalized(**norm):
    """A dense layer followed by batch norm."""
    with Tracer("float32") as tracer:
        x = tracer.input("features", (BATCH, 6), "float32")
        labels = tracer.input("labels", (BATCH,), "int32")
        x = nn.BatchNorm(name="norm", **norm)(nn.Dense(7)(x))
        loss = nn.softmax_cross_entropy(nn.Dense(3)(x), labels)
        return tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [])


def test_a_model_that_mixes_the_samples_of_a_batch_has_one_and_says_why():
    options = options_of(system=SLOWLY_LINKED)
    choice = choose_replicas(normalized(), options)
    assert choice == ReplicaChoice(1, 1, 1.0, choice.refused)
    assert re.fullmatch(r"layer norm: \w+ mixes the samples of a batch", choice.refused)
    split = choose_replicas(normalized(by_minibatch=True), options)
    assert split.replicas > 1
    assert split.refused is None


def test_a_small_model_with_a_large_batch_has_several_on_a_cs2():
    """There are more PEs than weights, and a replica can use only one PE per weight."""
    choice = choose_replicas(Network(batch=32768).trace(), options_of())
    assert choice.replicas > 1
    assert choice.gain > 1.01


def test_what_was_chosen_is_found_in_a_compile_of_that_model_and_those_options(tmp_path):
    options = options_of(system=SLOWLY_LINKED)
    question = question_of(Network(batch=BATCH).trace(), options)
    assert chosen_before(question, tmp_path, tmp_path / "nowhere") is None
    wanted = msgspec.structs.replace(options, replicas=4, chosen_for=("another", question))
    compiled = compile_model(Network(batch=BATCH // 4).trace(), tmp_path, wanted)
    assert chosen_before(question, tmp_path / "nowhere", tmp_path).replicas == 4
    for other in (
        question_of(Network(batch=BATCH).trace(), options_of()),
        question_of(Network(batch=2 * BATCH).trace(), options),
    ):
        assert chosen_before(other, tmp_path) is None
    (compiled.executable.directory / "plan.json").write_text("{}")
    assert chosen_before(question, tmp_path) is None
