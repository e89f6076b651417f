"""Rules about files that are read in turn: several at once pay where reading waits."""

from csrun.advice.input_fn_report.finding import Advice, AdviceRule, Severity
from csrun.advice.input_fn_report.pipeline import Here, Pipeline

SOURCE = "from_files"
CYCLE = 4  # files at a time
BLOCK = 16  # samples of a file in turn: a step of the chain for each sample takes longer than most
WAITING = 0.2  # of the input time: threads that compute in Python take turns, and gain nothing


def _interleave_missing(here: Here) -> Advice | None:
    files, is_indexed = here.option("files"), here.option("samples") is not None
    if is_indexed or files < 2 or here.pipeline.has("interleave"):
        return None
    now = f"{files} files are read one after the other"
    return _at_once(here.pipeline, f"{now}, a wait at a time", min(files, CYCLE))


def _interleave_serial(here: Here) -> Advice | None:
    cycle = here.option("cycle_length")
    if not here.comes_after(SOURCE):
        return None
    if cycle == 1:
        return _at_once(here.pipeline, "cycle_length=1 reads one file at a time", CYCLE)
    if here.option("num_parallel_calls") is not None:
        return None
    return _at_once(here.pipeline, f"its {cycle} files are read in turn, by one thread", cycle)


def _at_once(pipeline: Pipeline, now: str, cycle: int) -> Advice | None:
    """Read so many files on threads of their own, where that is known or likely to pay."""
    change = f".interleave({cycle}, block_length={BLOCK}, num_parallel_calls=AUTOTUNE)"
    cost = pipeline.costs.get(SOURCE)
    if cost is None:
        return Advice(now, f"{change}, if reading waits for a disk", Severity.INFO)
    waits = max(cost.wall_s - cost.cpu_s, 0.0) / pipeline.work_s
    return Advice(now, change, gain=waits * (1 - 1 / cycle)) if waits >= WAITING else None


def _blocks_small(here: Here) -> Advice | None:
    block = here.option("block_length")
    if block is None or block >= BLOCK or here.option("cycle_length") == 1:
        return None
    now = f"block_length={block}: every stage takes a step for so few samples"
    return Advice(now, f"interleave(…, block_length={BLOCK}), and a window to mix them")


READING_RULES = (
    AdviceRule(
        "interleave-missing",
        (SOURCE,),
        "while one file waits for the disk, others are read",
        _interleave_missing,
        gain=0.4,
        about="interleave",
    ),
    AdviceRule(
        "interleave-serial",
        ("interleave",),
        "while one file waits for the disk, others are read",
        _interleave_serial,
        gain=0.3,
    ),
    AdviceRule(
        "blocks-small",
        ("interleave",),
        "files give some samples at a time",
        _blocks_small,
        gain=0.3,
    ),
)


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
    AdviceRule(
        "prefetch-missing",
        ("from_arrays", "from_files"),
        "without streamers, the next batch is made during a step",
        _missing,
        gain=0.35,
        about="prefetch",
    ),
    AdviceRule(
        "prefetch-beside-ring",
        ("prefetch",),
        "a streamer's ring is filled ahead of the wafer",
        _beside_ring,
        gain=0.03,
    ),
)
