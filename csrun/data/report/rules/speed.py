"""Rules about the work of a streamer: what it does too often, or one thing after the other."""

from csrun.data.operators import Operator
from csrun.data.report.finding import Advice, Rule, Severity
from csrun.data.report.pipeline import Here
from csrun.data.report.rules.learning import sounds_random

VECTORISED = 0.9  # of the time of a function that is called once a sample
WAITING = 0.1  # of the input time: below it there is nothing to read ahead of
DOMINANT = 0.3  # of the input time: an expensive function
CYCLE = 4


def _map_before_batch(here: Here) -> Advice | None:
    batch = _batch_to_come(here)
    if batch is None:
        return None
    function, size = here.option("function"), batch.options["batch_size"]
    now = f"{function} is called for each sample, {size} times a batch"
    change = f"write .batch({size}, …) before .map({function}), which then gets arrays of {size}"
    return Advice(now, change, saves=VECTORISED)


def _batch_to_come(here: Here) -> Operator | None:
    """The batch that a function of samples could be called after instead."""
    batch = next((op for op in here.after if op.name == "batch"), None)
    if batch is None or batch.options.get("padded_shapes") or here.comes_before("filter", "cache"):
        return None
    return batch


def _map_serial(here: Here) -> Advice | None:
    cpus, is_parallel = here.pipeline.cpus, here.option("num_parallel_calls") is not None
    if is_parallel or cpus == 1 or not here.pipeline.training or _batch_to_come(here):
        return None
    function = here.option("function")
    change = f"map({function}, num_parallel_calls=AUTOTUNE)"
    if cpus is None:
        now = f"{function} runs on one CPU, however many a task has"
        return Advice(now, change, Severity.INFO, saves=0.5)
    now = f"{function} runs on one CPU of {cpus}"
    share = here.pipeline.share(here.operator)
    severity = Severity.WARNING if share and share >= DOMINANT else Severity.INFO
    return Advice(now, change, severity, saves=1 - 1 / cpus)


def _cache_missing(here: Here) -> Advice | None:
    pipeline = here.pipeline
    share = pipeline.share(here.operator)
    if share is None or share < DOMINANT or not pipeline.endless or sounds_random(here.operator):
        return None
    if here.comes_after("batch", "shuffle", "repeat") or pipeline.has("cache"):
        return None
    function = here.option("function")
    now = f"{function} does the same work in every pass"
    return Advice(now, f"write .cache() after .map({function}), if memory holds it", saves=share)


def _interleave_missing(here: Here) -> Advice | None:
    files = here.option("files") or 0
    if here.pipeline.indexable or files < 2 or here.pipeline.has("interleave"):
        return None
    cycle = min(files, CYCLE)
    now = f"{files} files are read one after the other"
    change = f"add .interleave(cycle_length={cycle}, num_parallel_calls=AUTOTUNE)"
    return Advice(now, change, saves=1 - 1 / cycle)


def _interleave_serial(here: Here) -> Advice | None:
    cycle = here.option("cycle_length")
    if cycle == 1:
        now = "cycle_length=1 reads one file at a time"
        return Advice(now, f"interleave(cycle_length={CYCLE}, num_parallel_calls=AUTOTUNE)")
    if here.option("num_parallel_calls") is not None:
        return None
    now = f"its {cycle} files are read in turn, by one thread"
    change = f"interleave(cycle_length={cycle}, num_parallel_calls=AUTOTUNE)"
    return Advice(now, change, saves=1 - 1 / cycle)


def _prefetch_missing(here: Here) -> Advice | None:
    pipeline = here.pipeline
    if pipeline.has("prefetch") or not pipeline.work_s:
        return None
    waits = sum(max(cost.wall_s - cost.cpu_s, 0.0) for cost in pipeline.costs.values())
    waiting = waits / pipeline.work_s
    if waiting < WAITING:
        return None
    now = f"a batch waits {waiting:.0%} of its time for a disk or another process"
    return Advice(now, "write .prefetch(4) at the end of the chain", gain=min(waiting, 1 - waiting))


def _prefetch_early(here: Here) -> Advice | None:
    late = [operator.stage for operator in here.after]
    if not late:
        return None
    now = f"{', '.join(late)} is not done ahead"
    return Advice(now, "write .prefetch(…) at the end of the chain", Severity.INFO)


SPEED_RULES = (
    Rule(
        "map-before-batch",
        ("map",),
        "batch first, then map whole batches",
        _map_before_batch,
        gain=0.5,
    ),
    Rule(
        "interleave-missing",
        ("from_files",),
        "several files are read at once",
        _interleave_missing,
        gain=0.4,
        about="interleave",
    ),
    Rule(
        "interleave-serial",
        ("interleave",),
        "files are read in parallel",
        _interleave_serial,
        gain=0.3,
    ),
    Rule(
        "cache-missing",
        ("map",),
        "what is expensive and always the same is done once",
        _cache_missing,
        gain=0.3,
        about="cache",
    ),
    Rule(
        "map-serial",
        ("map",),
        "a function of batches uses all CPUs of its task",
        _map_serial,
        gain=0.2,
    ),
    Rule(
        "prefetch-missing",
        ("from_arrays", "from_files"),
        "batches are read ahead",
        _prefetch_missing,
        gain=0.1,
        about="prefetch",
    ),
    Rule(
        "prefetch-early",
        ("prefetch",),
        "prefetch is the last operator",
        _prefetch_early,
        gain=0.05,
    ),
)
