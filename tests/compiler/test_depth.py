"""Deep networks: the work of the back end grows as their number of layers does."""

import sys

from support.programs import Network, options_of

from csrun.compiler.arena import place_model
from csrun.compiler.layers import lay_out
from csrun.compiler.matching import match_kernels
from csrun.compiler.passes import run_passes


def calls_of_back_end(layers: int) -> int:
    """How many functions, Python's own included, matching and placing so many layers call."""
    count = 0

    def counting(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    module = Network(sizes=(6, *[4] * layers, 3), batch=2).trace()
    run_passes(module)
    profiler = sys.getprofile()
    sys.setprofile(counting)
    try:
        model = match_kernels(module)
        place_model(model, lay_out(model, group_bytes=1), options_of(), batch=2)
    finally:
        sys.setprofile(profiler)
    return count


def test_three_times_the_layers_cost_about_three_times_the_calls():
    calls_of_back_end(2)  # what is made once
    few, many = (calls_of_back_end(layers) for layers in (30, 90))
    assert many < 3.5 * few
