"""What a model may reach on a CS system, from its operations and its bytes alone.

    compute       = peak FLOP/s * EFFICIENCY / FLOPs a sample
    transmission  = I/O bytes a second / bytes a sample
    samples/s     = the smaller of the two

Peak FLOP/s is cores * 2 * multiply-adds a core a cycle * clock. Bytes a sample are its inputs; in
weight streaming the weights go in twice a batch and, in training, their gradients out once, shared
by the samples of the batch. Backward FLOPs count in training.
"""

from collections.abc import Sequence

from csrun.compiler.layers import Layout
from csrun.compiler.options import CompileOptions
from csrun.executable import Estimate, InputSpec, nbytes_of
from csrun.mode import ExecutionMode, RunMode

#: Share of the peak that dense models reach; own choice, so that BERT-large comes near its
#: published 6,370 samples/s on one CS-2 (about 2.4e11 FLOPs a sample at sequence 128).
EFFICIENCY = 0.2


def estimate(
    layout: Layout, inputs: Sequence[InputSpec], batch: int, options: CompileOptions
) -> Estimate:
    """The estimate of a plan on the options' system."""
    system = options.system
    training = options.run_mode is RunMode.TRAIN
    flops = sum(
        layer.forward_flops + (layer.backward_flops if training else 0) for layer in layout.layers
    )
    peak = 2 * system.usable_cores * system.multiply_adds_per_core_cycle * system.clock_hz
    compute = EFFICIENCY * peak * batch / max(flops, 1)
    nbytes = sum(nbytes_of(spec.shape, spec.dtype) for spec in inputs)
    if options.mode is ExecutionMode.WEIGHT_STREAMING:
        nbytes += (3 if training else 1) * layout.region_bytes
    transmission = system.io_gbit_per_s * 1e9 / 8 * batch / max(nbytes, 1)
    return Estimate(min(compute, transmission), compute, transmission, 1.0, EFFICIENCY, ())
