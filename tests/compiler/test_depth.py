"""Deep networks: the compiler's work is linear in the number of operators."""

from collections.abc import Callable
from cProfile import Profile
from typing import Any

from support.programs import Network, options_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import PassObserver, compile_model
from csrun.compiler.matching import match_kernels
from csrun.compiler.passes import Verification, run_passes
from csrun.nn.tracer import Tracer

STREAMING = ExecutionMode.WEIGHT_STREAMING


def calls_of(work: Callable[[], Any]) -> int:
    """Number of Python calls, built-in functions included, that some work makes."""
    profile = Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())


def test_three_times_the_layers_cost_about_three_times_the_calls(tmp_path):
    def calls_of_compiling(layers: int) -> int:
        module = Network(sizes=(6, *[4] * layers, 3), batch=2).trace()
        options, observer = (
            options_of(STREAMING, group_bytes=1),
            PassObserver(verify=Verification.NONE),
        )
        return calls_of(lambda: compile_model(module, tmp_path, options, observer))

    calls_of_compiling(2)  # what is made once
    few, many = map(calls_of_compiling, (30, 90))
    assert many < 3.3 * few


def test_three_times_the_elementwise_operators_cost_no_power_of_two():
    """Each value is read by two operators, whose results are each read by two, and so on."""

    def calls_of_matching(steps: int) -> int:
        with Tracer("float32") as tracer:
            x = nn.Dense(4)(tracer.input("features", (2, 4), "float32"))
            labels = tracer.input("labels", (2,), "int32")
            for _ in range(steps):
                x = nn.exp(x) * 0.5 + x
            loss = nn.softmax_cross_entropy(x, labels)
            module = tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [])
        run_passes(module)
        return calls_of(lambda: match_kernels(module))

    few, many = map(calls_of_matching, (5, 15))
    assert many < 9 * few
