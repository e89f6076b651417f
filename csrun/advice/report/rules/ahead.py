"""Rules about batches that are made ahead: a streamer's ring is, a single process has none."""

from csrun.advice.report.finding import Advice, Rule, Severity
from csrun.advice.report.pipeline import Here

AHEAD = 2  # batches: one that is taken, and one in the making
PAYS_S = 1e-3  # a batch's wait: well above the 0.1 ms that handing it to a thread costs
OF_A_LIBRARY = ("num_workers", "num_threads")  # its workers, not a thread that calls it


def _beside_ring(here: Here) -> Advice | None:
    theirs = any(here.option(name) is not None for name in OF_A_LIBRARY)
    if theirs or here.option("ahead") is None or not here.pipeline.has_ring:
        return None
    now = "a thread makes batches ahead of the ring, which is itself filled ahead of the wafer"
    change = "leave prefetch out; nothing waits for it, and a batch is copied once less"
    return Advice(now, change, Severity.INFO)


def _missing(here: Here) -> Advice | None:
    pipeline = here.pipeline
    ahead = pipeline.indexable and any(
        operator.options.get("num_parallel_calls") is not None for operator in pipeline.operators
    )
    if pipeline.has_ring or pipeline.has("prefetch") or ahead:
        return None
    waits_s = sum(max(cost.wall_s - cost.cpu_s, 0.0) for cost in pipeline.costs.values())
    if waits_s < PAYS_S:
        return None
    now = f"each step waits {1000 * waits_s:.1f} ms for its batch, in which nothing computes"
    change = f"end the chain with .prefetch({AHEAD}); csrun's streamers need none"
    return Advice(now, change, Severity.INFO)


AHEAD_RULES = (
    Rule(
        "prefetch-missing",
        ("from_arrays", "from_files"),
        "without streamers, the next batch is made during a step",
        _missing,
        gain=0.35,
        about="prefetch",
    ),
    Rule(
        "prefetch-beside-ring",
        ("prefetch",),
        "a streamer's ring is filled ahead of the wafer",
        _beside_ring,
        gain=0.03,
    ),
)
