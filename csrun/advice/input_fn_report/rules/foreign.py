"""Rules about data sets of other libraries: torch DataLoader, grain."""

from csrun.advice.input_fn_report.finding import Advice, AdviceRule, Effect, Severity
from csrun.advice.input_fn_report.pipeline import PipelinePosition

LOADER = ("DataLoader",)
THREADS_A_CPU = 4  # for threads that mostly wait


def _unseeded(here: PipelinePosition) -> Advice | None:
    pipeline = here.pipeline
    if here.option("seed") is not None or not pipeline.training or pipeline.streamers == 1:
        return None
    severity = Severity.INFO if pipeline.streamers is None else Severity.WARNING
    now = "without a seed, each streamer shuffles in its own order"
    return Advice(now, ".shuffle(seed=1)", severity)


def _in_order(here: PipelinePosition) -> Advice | None:
    if not here.pipeline.training or here.option("shuffle") is not False:
        return None
    now = "every pass reads the samples in the same order"
    return Advice(now, "DataLoader(…, shuffle=True)")


def _sample_by_sample(here: PipelinePosition) -> Advice | None:
    if not here.option("in_memory"):
        return None
    now = f"{here.option('dataset')} reads samples one by one, and stacks them again"
    return Advice(now, "return Dataset.from_arrays(…).shuffle(seed=1).repeat().batch(…)")


def _workers(here: PipelinePosition) -> Advice | None:
    workers, pipeline = here.option("num_workers"), here.pipeline
    if not workers:
        return None
    streamers = pipeline.streamers or 1
    in_all = f", {workers * streamers} in total" if streamers > 1 else ""
    now = f"each streamer starts {workers} more worker processes{in_all}"
    option = "num_workers=0" if pipeline.has(*LOADER) else "remove mp_prefetch"
    change = f"{option}, and run more streamers (csrun_wse --tasks-per-node)"
    oversubscribed = pipeline.cpus is not None and pipeline.cpus <= workers
    return Advice(now, change, Severity.WARNING if oversubscribed else Severity.INFO)


def _restarted_workers(here: PipelinePosition) -> Advice | None:
    if not here.option("num_workers") or here.option("persistent_workers"):
        return None
    now = "worker processes are restarted in each pass"
    return Advice(now, "DataLoader(…, persistent_workers=True)", Severity.INFO)


def _threads(here: PipelinePosition) -> Advice | None:
    threads, cpus = here.option("num_threads"), here.pipeline.cpus
    if threads is None or cpus is None or threads <= THREADS_A_CPU * cpus:
        return None
    now = f"{threads} threads read on {cpus} CPU{'s' if cpus > 1 else ''}"
    change = f"to_iter_dataset(grain.ReadOptions(num_threads={THREADS_A_CPU * cpus}))"
    return Advice(now, change, Severity.INFO)


FOREIGN_RULES = (
    AdviceRule(
        "shuffle-unseeded",
        ("shuffle",),
        "all streamers read the data in one order",
        _unseeded,
        Effect.LEARNING,
        gain=0.7,
    ),
    AdviceRule(
        "loader-in-order",
        LOADER,
        "training samples are shuffled",
        _in_order,
        Effect.LEARNING,
        gain=0.6,
    ),
    AdviceRule(
        "loader-sample-by-sample",
        LOADER,
        "arrays are read in batches",
        _sample_by_sample,
        gain=0.6,
    ),
    AdviceRule(
        "workers",
        ("prefetch",),
        "a streamer already is a worker process",
        _workers,
        gain=0.3,
    ),
    AdviceRule(
        "workers-started-anew",
        LOADER,
        "worker processes persist across passes",
        _restarted_workers,
        gain=0.1,
    ),
    AdviceRule(
        "threads",
        ("prefetch",),
        "a few threads per CPU read ahead",
        _threads,
        gain=0.03,
    ),
)
