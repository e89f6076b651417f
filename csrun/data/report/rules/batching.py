"""Rules about batches: their size, their remainder, their shape."""

from math import inf

from csrun.data.report.finding import Advice, Effect, Rule, Severity
from csrun.data.report.pipeline import Here

MUCH = 0.05  # of a pass


def _remainder_kept(here: Here) -> Advice | None:
    samples, size = here.samples(), here.option("batch_size")
    drops, training = here.option("drop_remainder"), here.pipeline.training
    if not training or drops or samples == inf or (samples is not None and samples % size == 0):
        return None
    change = "batch(…, drop_remainder=True), or .repeat() before .batch(…)"
    if samples is None:
        now = f"the last batch of a pass may be shorter, the wafer computes all {size} rows"
        return Advice(now, change, Severity.INFO)
    rest = int(samples % size)
    wasted = (size - rest) / (samples - rest + size)
    now = f"the last batch of a pass has {rest} samples, the wafer computes all {size} rows"
    return Advice(now, change, Severity.WARNING if wasted > MUCH else Severity.INFO, gain=wasted)


def _samples_lost(here: Here) -> Advice | None:
    samples, size = here.samples(), here.option("batch_size")
    if not here.option("drop_remainder") or samples in (None, inf) or samples is None:
        return None
    lost = int(samples % size)
    if not lost or (here.pipeline.training and _few_and_others(here, lost / samples)):
        return None
    always = "" if here.comes_after("shuffle") else ", always the same ones"
    now = f"{lost} of {int(samples):,} samples of a pass are left out{always}"
    if not here.pipeline.training:
        return Advice(now, "batch(…) without drop_remainder")
    return Advice(
        now, f"write .repeat() before .batch({size}, …), which fills batches across passes"
    )


def _few_and_others(here: Here, share: float) -> bool:
    """Whether it does not matter: few samples are left out, and others in each pass."""
    return share < MUCH and here.comes_after("shuffle")


def _own_shapes(here: Here) -> Advice | None:
    shapes = here.option("padded_shapes")
    if not shapes or not _open_axes(shapes):
        return None
    now = "padded_shapes pads a batch to its own longest sample"
    return Advice(now, "give the length of each axis in padded_shapes, e.g. the model's")


def _open_axes(shapes: object) -> bool:
    if isinstance(shapes, tuple | list):
        return any(_open_axes(shape) for shape in shapes)
    return shapes is None or shapes == -1


BATCHING_RULES = (
    Rule(
        "own-shapes",
        ("batch", "padded_batch"),
        "all batches have the shape that was compiled",
        _own_shapes,
        Effect.LEARNING,
        gain=0.8,
    ),
    Rule(
        "samples-lost",
        ("batch",),
        "every sample is used",
        _samples_lost,
        Effect.LEARNING,
        gain=0.2,
    ),
    Rule(
        "remainder-kept",
        ("batch",),
        "training batches are full",
        _remainder_kept,
        gain=0.02,
    ),
)
