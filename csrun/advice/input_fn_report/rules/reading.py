"""Rules about streamed files, for which parallel reads help if reading waits, and prefetching."""

from csrun.advice.input_fn_report.finding import Advice, AdviceRule, Severity
from csrun.advice.input_fn_report.pipeline import Pipeline, PipelinePosition

SOURCE = "from_files"
CYCLE = 4  # files at a time
BLOCK = 16  # samples per block: smaller ones are dominated by the overhead per step
WAITING = 0.2  # of the input time; threads that compute in Python gain nothing


def _interleave_missing(here: PipelinePosition) -> Advice | None:
    files, is_indexed = here.option("files"), here.option("samples") is not None
    if is_indexed or files < 2 or here.pipeline.has("interleave"):
        return None
    now = f"{files} files are read sequentially"
    return _at_once(here.pipeline, f"{now}, waiting for each read", min(files, CYCLE))


def _interleave_serial(here: PipelinePosition) -> Advice | None:
    cycle = here.option("cycle_length")
    if not here.comes_after(SOURCE):
        return None
    if cycle == 1:
        return _at_once(here.pipeline, "cycle_length=1 reads one file at a time", CYCLE)
    if here.option("num_parallel_calls") is not None:
        return None
    return _at_once(here.pipeline, f"its {cycle} files are read by one thread", cycle)


def _at_once(pipeline: Pipeline, now: str, cycle: int) -> Advice | None:
    """Advise reading several files on threads, if that is known or likely to help."""
    change = f".interleave({cycle}, block_length={BLOCK}, num_parallel_calls=AUTOTUNE)"
    cost = pipeline.costs.get(SOURCE)
    if cost is None:
        return Advice(now, f"{change}, if reading waits for the disk", Severity.INFO)
    waits = max(cost.wall_s - cost.cpu_s, 0.0) / pipeline.work_s
    return Advice(now, change, gain=waits * (1 - 1 / cycle)) if waits >= WAITING else None


def _blocks_small(here: PipelinePosition) -> Advice | None:
    block = here.option("block_length")
    if block is None or block >= BLOCK or here.option("cycle_length") == 1:
        return None
    now = f"block_length={block}: stages process too few samples at a time"
    return Advice(now, f"interleave(…, block_length={BLOCK}), and a shuffle window to mix them")


READING_RULES = (
    AdviceRule(
        "interleave-missing",
        (SOURCE,),
        "other files are read while one waits for the disk",
        _interleave_missing,
        gain=0.4,
        about="interleave",
    ),
    AdviceRule(
        "interleave-serial",
        ("interleave",),
        "other files are read while one waits for the disk",
        _interleave_serial,
        gain=0.3,
    ),
    AdviceRule(
        "blocks-small",
        ("interleave",),
        "files are read in blocks of samples",
        _blocks_small,
        gain=0.3,
    ),
)


AHEAD = 2  # batches: one in use, one being made
PAYS_S = 1e-3  # wait per batch, well above the 0.1 ms of passing it to a thread
OF_A_LIBRARY = ("num_workers", "num_threads")  # its own workers, not a thread of csrun's


def _superfluous(here: PipelinePosition) -> Advice | None:
    theirs = any(here.option(name) is not None for name in OF_A_LIBRARY)
    if theirs or here.option("ahead") is None or not here.pipeline.has_ring:
        return None
    now = "a thread prefetches for the ring, which is itself filled ahead of the wafer"
    change = "remove prefetch; it saves no time and copies each batch once more"
    return Advice(now, change, Severity.INFO)


def _missing(here: PipelinePosition) -> Advice | None:
    pipeline = here.pipeline
    ahead = pipeline.indexable and any(
        operator.options.get("num_parallel_calls") is not None for operator in pipeline.operators
    )
    if pipeline.has_ring or pipeline.has("prefetch") or ahead:
        return None
    waits_s = sum(max(cost.wall_s - cost.cpu_s, 0.0) for cost in pipeline.costs.values())
    if waits_s < PAYS_S:
        return None
    now = f"each step is idle for {1000 * waits_s:.1f} ms while it waits for its batch"
    change = f"end the chain with .prefetch({AHEAD}); not needed with streamers"
    return Advice(now, change, Severity.INFO)


AHEAD_RULES = (
    AdviceRule(
        "prefetch-missing",
        ("from_arrays", "from_files"),
        "without streamers, batches are prefetched",
        _missing,
        gain=0.35,
        about="prefetch",
    ),
    AdviceRule(
        "prefetch-beside-ring",
        ("prefetch",),
        "a streamer's ring is filled ahead of the wafer",
        _superfluous,
        gain=0.03,
    ),
)
