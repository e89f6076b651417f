"""Rules about files that are read in turn: several at once pay where reading waits."""

from csrun.advice.report.finding import Advice, Rule, Severity
from csrun.advice.report.pipeline import Here, Pipeline

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
    Rule(
        "interleave-missing",
        (SOURCE,),
        "while one file waits for the disk, others are read",
        _interleave_missing,
        gain=0.4,
        about="interleave",
    ),
    Rule(
        "interleave-serial",
        ("interleave",),
        "while one file waits for the disk, others are read",
        _interleave_serial,
        gain=0.3,
    ),
    Rule(
        "blocks-small",
        ("interleave",),
        "files give some samples at a time",
        _blocks_small,
        gain=0.3,
    ),
)
