"""Rules about batches: their size and their remainder."""

from math import inf

from csrun.advice.report.finding import Advice, Effect, Rule, Severity
from csrun.advice.report.pipeline import Here

MUCH = 0.05  # of a pass


def _remainder_kept(here: Here) -> Advice | None:
    samples, size = here.samples(), here.option("batch_size")
    drops, training = here.option("drop_remainder"), here.pipeline.training
    if not training or not size or drops or samples == inf:
        return None
    if samples is not None and samples % size == 0:
        return None
    change = "batch(…, drop_remainder=True), or .repeat() before .batch(…)"
    if here.pipeline.has("DataLoader"):
        change = "DataLoader(…, drop_last=True)"
    if samples is None:
        now = f"the last batch of a pass may be shorter, the wafer computes all {size} rows"
        return Advice(now, change, Severity.INFO)
    rest = int(samples % size)
    wasted = (size - rest) / (samples - rest + size)
    count = f"{rest} samples" if rest > 1 else "one sample"
    now = f"the last batch of a pass has {count}, the wafer computes all {size} rows"
    return Advice(now, change, Severity.WARNING if wasted > MUCH else Severity.INFO, gain=wasted)


def _samples_lost(here: Here) -> Advice | None:
    samples, size = here.samples(), here.option("batch_size")
    if not here.option("drop_remainder") or not size or samples is None or samples in (0, inf):
        return None
    lost, training = int(samples % size), here.pipeline.training
    are_few, are_others = lost / samples < MUCH, here.comes_after("shuffle")
    if not lost or (training and are_few and are_others) or here.pipeline.has("DataLoader"):
        return None
    always = "" if are_others else ", always the same ones"
    now = f"{lost} of {int(samples):,} samples of a pass are left out{always}"
    if not training:
        return Advice(now, "batch(…) without drop_remainder")
    change = f"write .repeat() before .batch({size}, …), which fills batches across passes"
    return Advice(now, change, Severity.INFO if are_few else Severity.WARNING)


BATCHING_RULES = (
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
