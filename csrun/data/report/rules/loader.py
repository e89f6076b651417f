"""Rules about torch's DataLoader as an input function's result."""

from csrun.data.report.finding import Advice, Effect, Rule, Severity
from csrun.data.report.pipeline import Here

LOADER = ("DataLoader",)
INSTEAD = "Dataset.from_arrays(…).shuffle(seed=1).repeat().batch(…)"


def _unseeded(here: Here) -> Advice | None:
    streamers = here.pipeline.streamers
    if not here.option("shuffle") or here.option("seeded") or streamers == 1:
        return None
    now = "shuffle=True without a generator: each streamer draws an order of its own"
    change = "DataLoader(…, generator=torch.Generator().manual_seed(1))"
    return Advice(now, change, Severity.INFO if streamers is None else Severity.WARNING)


def _in_order(here: Here) -> Advice | None:
    if not here.pipeline.training or here.option("shuffle") is not False:
        return None
    now = "shuffle=False: every pass goes through the samples in the same order"
    change = "DataLoader(…, shuffle=True, generator=torch.Generator().manual_seed(1))"
    return Advice(now, change)


def _sample_by_sample(here: Here) -> Advice | None:
    if not here.option("in_memory"):
        return None
    now = f"{here.option('dataset')} gives sample by sample, and collate_fn stacks them"
    return Advice(now, f"return {INSTEAD}, which takes a batch at once")


def _workers(here: Here) -> Advice | None:
    workers, streamers = here.option("num_workers"), here.pipeline.streamers
    if not workers:
        return None
    in_all = f": {workers * streamers} in all" if streamers and streamers > 1 else ""
    now = f"each streamer starts {workers} worker processes beside itself{in_all}"
    change = "num_workers=0, and more streamers (csrun_wse --tasks-per-node)"
    crowded = (here.pipeline.cpus or workers + 1) <= workers
    return Advice(now, change, Severity.WARNING if crowded else Severity.INFO)


def _started_anew(here: Here) -> Advice | None:
    if not here.option("num_workers") or here.option("persistent_workers") is not False:
        return None
    now = "the worker processes end with each pass, and start anew"
    return Advice(now, "DataLoader(…, persistent_workers=True)", Severity.INFO)


def _remainder(here: Here) -> Advice | None:
    if not here.pipeline.training or here.option("drop_last") is not False:
        return None
    now = "drop_last=False: the last batch of a pass may be shorter, the wafer computes all rows"
    return Advice(now, "DataLoader(…, drop_last=True)", Severity.INFO)


LOADER_RULES = (
    Rule(
        "loader-unseeded",
        LOADER,
        "all streamers go through the data in one order",
        _unseeded,
        Effect.LEARNING,
        gain=0.7,
    ),
    Rule(
        "loader-in-order",
        LOADER,
        "training samples come in random order",
        _in_order,
        Effect.LEARNING,
        gain=0.6,
    ),
    Rule(
        "loader-sample-by-sample",
        LOADER,
        "arrays are read a batch at a time",
        _sample_by_sample,
        gain=0.6,
    ),
    Rule(
        "loader-workers",
        LOADER,
        "a streamer is a worker process already",
        _workers,
        gain=0.3,
    ),
    Rule(
        "loader-started-anew",
        LOADER,
        "worker processes outlive a pass",
        _started_anew,
        gain=0.1,
    ),
    Rule(
        "loader-remainder",
        LOADER,
        "training batches are full",
        _remainder,
        gain=0.02,
    ),
)
