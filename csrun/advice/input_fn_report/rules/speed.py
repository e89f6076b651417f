"""Rules about the work of a streamer: repeated work, and missing parallelism."""

from csrun.advice.input_fn_report.finding import Advice, AdviceRule, Severity
from csrun.advice.input_fn_report.pipeline import PipelinePosition
from csrun.advice.input_fn_report.rules.training_data import has_random_name
from csrun.data.input_operators import InputOperator, Level

VECTORISED = 0.9  # saved of the time of a function called per sample
DOMINANT = 0.3  # of the input time: an expensive function
THREAD_PAYS_S = 1e-3  # work per batch, well above the 0.1 ms of passing it to a thread
THREAD_COSTS_S = 1e-4
CALLS = 8  # concurrent calls of a function that waits
ANY_LENGTH = ("Lines", "TFRecord", "TFExample")  # formats whose samples may differ in shape


def _map_before_batch(here: PipelinePosition) -> Advice | None:
    batch = _upcoming_batch(here)
    if batch is None:
        return None
    function, size = here.option("function"), batch.options["batch_size"]
    now = f"{function} is called per sample, {size} times per batch"
    change = f"move .batch({size}, …) before .map({function}), which then gets arrays of {size}"
    return Advice(now, change, saves=VECTORISED)


def _upcoming_batch(here: PipelinePosition) -> InputOperator | None:
    """Return a later batch operator that the function could follow instead."""
    batch = next((op for op in here.after if op.name == "batch"), None)
    if batch is None or batch.options.get("padded_shapes") or not batch.options.get("batch_size"):
        return None
    return None if here.comes_before("filter", "cache") or _makes_equal_shapes(here) else batch


def _makes_equal_shapes(here: PipelinePosition) -> bool:
    """True for the first map of samples of any length, which may make their shapes equal."""
    return here.before[0].options.get("format") in ANY_LENGTH and not here.comes_after("map")


def _is_worth_threads(here: PipelinePosition, batch_s: float) -> bool:
    """True if this time dominates a batch, and is worth a thread for each call."""
    if here.comes_before("cache"):  # the time of the first pass only
        return False
    pipeline = here.pipeline
    a_sample_each = here.operator.level is Level.SAMPLE and not pipeline.indexable
    calls = (pipeline.batch_size or 1) if a_sample_each else 1
    return batch_s >= DOMINANT * pipeline.work_s and batch_s / calls >= THREAD_PAYS_S


def _map_serial(here: PipelinePosition) -> Advice | None:
    cpus, cost = here.pipeline.cpus, here.cost
    if here.option("num_parallel_calls") is not None or cpus == 1 or _upcoming_batch(here):
        return None
    if cost is None or not _is_worth_threads(here, cost.cpu_s):
        return None
    function = here.option("function")
    now = f"{function} computes on one CPU{f' of {cpus}' if cpus else ''}"
    change = f"map({function}, num_parallel_calls=AUTOTUNE), if its work is done by NumPy"
    severity = Severity.WARNING if cpus else Severity.INFO
    return Advice(now, change, severity, saves=1 - 1 / (cpus or 2))


def _map_waits(here: PipelinePosition) -> Advice | None:
    cost, calls = here.cost, here.option("num_parallel_calls")
    waited_s = max(cost.wall_s - cost.cpu_s, 0.0) if cost else 0.0
    if calls is not None or not _is_worth_threads(here, waited_s):
        return None
    function = here.option("function")
    waited = here.pipeline.ms(here.operator, waited_s)
    now = f"{function} waits {waited} ms per batch, one call at a time"
    change = f"map({function}, num_parallel_calls={CALLS}), possibly more than the CPUs"
    return Advice(now, change, saves=(1 - 1 / CALLS) * waited_s / cost.wall_s if cost else None)


def _handed_over(here: PipelinePosition) -> Advice | None:
    work_s = here.pipeline.work_s
    if not work_s or work_s > THREAD_COSTS_S or here.option("num_parallel_calls") == 1:
        return None
    parallel = here.option("num_parallel_calls") is not None
    ring = here.pipeline.has_ring
    if not parallel and (here.operator.name == "map" or ring):
        return None
    now = f"a batch takes {1000 * work_s:.2f} ms, and passing it to a thread as much again"
    change = "remove num_parallel_calls" if parallel else "remove prefetch"
    instead = ": the streamer fills its ring ahead anyway" if ring else ""
    return Advice(now, f"{change}{instead}", Severity.INFO)


def _cache_missing(here: PipelinePosition) -> Advice | None:
    pipeline, cost = here.pipeline, here.cost
    if cost is None or cost.wall_s < max(THREAD_PAYS_S, DOMINANT * pipeline.work_s):
        return None
    if here.comes_after("batch", "shuffle", "repeat") or not pipeline.has("repeat"):
        return None
    if pipeline.has("cache") or has_random_name(here.operator):
        return None
    function = here.option("function")
    now = f"{function} does the same work in every pass"
    change = f"add .cache() after .map({function}), if the data fits in each streamer's memory"
    return Advice(now, change, saves=1.0)


SPEED_RULES = (
    AdviceRule(
        "map-before-batch",
        ("map",),
        "map whole batches",
        _map_before_batch,
        gain=0.5,
    ),
    AdviceRule(
        "cache-missing",
        ("map",),
        "expensive repeated work is done once",
        _cache_missing,
        about="cache",
    ),
    AdviceRule(
        "map-waits",
        ("map",),
        "other calls run while one waits",
        _map_waits,
    ),
    AdviceRule(
        "map-serial",
        ("map",),
        "an expensive function uses all CPUs of its task",
        _map_serial,
    ),
    AdviceRule(
        "handed-over",
        ("map", "prefetch"),
        "a thread is used only for enough work",
        _handed_over,
        gain=0.04,
    ),
)
