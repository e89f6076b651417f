"""Rules about the work of a streamer: what it does too often, or one thing after the other."""

from csrun.advice.input_fn_report.finding import Advice, AdviceRule, Severity
from csrun.advice.input_fn_report.pipeline import Here
from csrun.advice.input_fn_report.rules.learning import sounds_random
from csrun.data.operators import InputOperator, Level

VECTORISED = 0.9  # of the time of a function that is called once a sample
DOMINANT = 0.3  # of the input time: an expensive function
THREAD_PAYS_S = 1e-3  # a batch's work: well above the 0.1 ms that handing it to a thread costs
THREAD_COSTS_S = 1e-4
CALLS = 8  # at a time, of a function that waits
ANY_LENGTH = ("Lines", "TFRecord", "TFExample")  # formats whose samples need not be alike


def _map_before_batch(here: Here) -> Advice | None:
    batch = _batch_to_come(here)
    if batch is None:
        return None
    function, size = here.option("function"), batch.options["batch_size"]
    now = f"{function} is called for each sample, {size} times a batch"
    change = f"write .batch({size}, …) before .map({function}), which then gets arrays of {size}"
    return Advice(now, change, saves=VECTORISED)


def _batch_to_come(here: Here) -> InputOperator | None:
    """The batch that a function of samples could be called after instead."""
    batch = next((op for op in here.after if op.name == "batch"), None)
    if batch is None or batch.options.get("padded_shapes") or not batch.options.get("batch_size"):
        return None
    return None if here.comes_before("filter", "cache") or _makes_alike(here) else batch


def _makes_alike(here: Here) -> bool:
    """Whether it is what first makes equal shapes of samples of any length."""
    return here.before[0].options.get("format") in ANY_LENGTH and not here.comes_after("map")


def _is_worth_threads(here: Here, batch_s: float) -> bool:
    """Whether so much of a batch's time is dominant, and enough for each call of a thread."""
    if here.comes_before("cache"):  # it is the time of the first pass alone
        return False
    pipeline = here.pipeline
    a_sample_each = here.operator.level is Level.SAMPLE and not pipeline.indexable
    calls = (pipeline.batch_size or 1) if a_sample_each else 1
    return batch_s >= DOMINANT * pipeline.work_s and batch_s / calls >= THREAD_PAYS_S


def _map_serial(here: Here) -> Advice | None:
    cpus, cost = here.pipeline.cpus, here.cost
    if here.option("num_parallel_calls") is not None or cpus == 1 or _batch_to_come(here):
        return None
    if cost is None or not _is_worth_threads(here, cost.cpu_s):
        return None
    function = here.option("function")
    now = f"{function} computes on one CPU{f' of {cpus}' if cpus else ''}"
    change = f"map({function}, num_parallel_calls=AUTOTUNE), if NumPy does its work: on threads"
    severity = Severity.WARNING if cpus else Severity.INFO
    return Advice(now, change, severity, saves=1 - 1 / (cpus or 2))


def _map_waits(here: Here) -> Advice | None:
    cost, calls = here.cost, here.option("num_parallel_calls")
    waited_s = max(cost.wall_s - cost.cpu_s, 0.0) if cost else 0.0
    if calls is not None or not _is_worth_threads(here, waited_s):
        return None
    function = here.option("function")
    waited = here.pipeline.ms(here.operator, waited_s)
    now = f"{function} waits {waited} ms a batch, one call at a time"
    change = f"map({function}, num_parallel_calls={CALLS}), which may be more than the CPUs"
    return Advice(now, change, saves=(1 - 1 / CALLS) * waited_s / cost.wall_s if cost else None)


def _handed_over(here: Here) -> Advice | None:
    work_s = here.pipeline.work_s
    if not work_s or work_s > THREAD_COSTS_S or here.option("num_parallel_calls") == 1:
        return None
    parallel = here.option("num_parallel_calls") is not None
    ring = here.pipeline.has_ring
    if not parallel and (here.operator.name == "map" or ring):
        return None
    now = f"a batch is {1000 * work_s:.2f} ms of work, and handing it to a thread as much again"
    change = "leave num_parallel_calls out" if parallel else "leave prefetch out"
    instead = ": the streamer fills its ring ahead in any case" if ring else ""
    return Advice(now, f"{change}{instead}", Severity.INFO)


def _cache_missing(here: Here) -> Advice | None:
    pipeline, cost = here.pipeline, here.cost
    if cost is None or cost.wall_s < max(THREAD_PAYS_S, DOMINANT * pipeline.work_s):
        return None
    if here.comes_after("batch", "shuffle", "repeat") or not pipeline.has("repeat"):
        return None
    if pipeline.has("cache") or sounds_random(here.operator):
        return None
    function = here.option("function")
    now = f"{function} does the same work in every pass"
    change = f"write .cache() after .map({function}), if each streamer's memory holds all of it"
    return Advice(now, change, saves=1.0)


SPEED_RULES = (
    AdviceRule(
        "map-before-batch",
        ("map",),
        "batch first, then map whole batches",
        _map_before_batch,
        gain=0.5,
    ),
    AdviceRule(
        "cache-missing",
        ("map",),
        "what is expensive and always the same is done once",
        _cache_missing,
        about="cache",
    ),
    AdviceRule(
        "map-waits",
        ("map",),
        "while one call waits, others go on",
        _map_waits,
    ),
    AdviceRule(
        "map-serial",
        ("map",),
        "what computes long uses all CPUs of its task",
        _map_serial,
    ),
    AdviceRule(
        "handed-over",
        ("map", "prefetch"),
        "threads are for work that is worth handing over",
        _handed_over,
        gain=0.04,
    ),
)
