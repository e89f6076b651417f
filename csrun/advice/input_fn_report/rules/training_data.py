"""Rules about training data: order, passes, the end of the data."""

from math import ceil, inf

from csrun.advice.input_fn_report.finding import Advice, AdviceRule, Effect, Severity
from csrun.advice.input_fn_report.pipeline import PipelinePosition
from csrun.data.input_operators import InputOperator

OWN_SOURCES = ("from_arrays", "from_files")
SOURCES = (*OWN_SOURCES, "source")
BATCHES_IN_WINDOW = 10
RANDOM_WORDS = ("random", "augment", "jitter", "noise", "dropout", "mask", "flip", "crop", "mixup")


def _data_end(here: PipelinePosition) -> Advice | None:
    pipeline = here.pipeline
    if not pipeline.training or pipeline.endless:
        return None
    total, last = pipeline.total_batches(), pipeline.last_step
    change = "add .repeat() before .batch(…), and set max_steps"
    if here.operator.name == "DataLoader":
        change = "return Dataset.from_batches(loader).repeat(), and set max_steps"
    if total is None:
        now = "the number of batches is unknown, and the run ends with the data"
        return Advice(now, change, Severity.INFO) if here.operator.name in OWN_SOURCES else None
    if last is None:
        now = f"the run ends with the data, after {total:,} batches"
        return Advice(now, change, Severity.INFO)
    if total >= last:
        return None
    return Advice(f"the data ends after step {total:,} of {last:,}", change)


def _evaluation_without_end(here: PipelinePosition) -> Advice | None:
    if here.pipeline.training or here.option("count") or here.pipeline.last_step is not None:
        return None
    severity = Severity.INFO if here.pipeline.streamers is None else Severity.WARNING
    change = "remove repeat(), or set eval_steps"
    return Advice("repeat() makes the evaluation endless", change, severity)


def _shuffle_missing(here: PipelinePosition) -> Advice | None:
    if not here.pipeline.training or here.pipeline.has("shuffle"):
        return None
    in_window = not here.pipeline.indexable and here.operator.name != "source"
    call = ".shuffle(seed=1, window=10_000)" if in_window else ".shuffle(seed=1)"
    now = "every pass reads the samples in the same order"
    return Advice(now, f"add {call} before .repeat() and .batch(…)")


def _shuffle_after_batch(here: PipelinePosition) -> Advice | None:
    if not here.pipeline.training or not here.comes_after("batch"):
        return None
    now = "only batches are shuffled, each has the same samples in every pass"
    return Advice(now, "move .shuffle(…) before .batch(…)")


def _shuffle_after_repeat(here: PipelinePosition) -> Advice | None:
    if not here.pipeline.training or not here.comes_after("repeat"):
        return None
    now = "some samples are repeated before others were used"
    return Advice(now, "move .shuffle(…) before .repeat()")


def _shuffle_for_nothing(here: PipelinePosition) -> Advice | None:
    if here.pipeline.training:
        return None
    now = "an evaluation does not depend on the order"
    return Advice(now, "remove shuffle for evaluation", Severity.INFO)


def _window_small(here: PipelinePosition) -> Advice | None:
    window = here.option("window")
    if window is None or not here.pipeline.training:
        return None
    samples = here.samples()
    batch = here.pipeline.batch_size or 1 if here.comes_before("batch") else 1
    at_a_time = _samples_of_a_file(here.before) or 0
    least = max(BATCHES_IN_WINDOW * batch, at_a_time)
    if window >= least or (samples is not None and window >= samples):
        return None
    reason = "a file has" if least == at_a_time else f"{BATCHES_IN_WINDOW} batches are"
    now = f"window={window:,}, {reason} {least:,} samples"
    return Advice(now, f"shuffle(window={least})")


def _samples_of_a_file(before: tuple[InputOperator, ...]) -> int | None:
    """Samples per file, if files are read one after the other."""
    if not before or any(operator.name == "interleave" for operator in before):
        return None
    samples, files = before[0].options.get("samples"), before[0].options.get("files")
    return ceil(samples / files) if samples and files else None


def _cached_draw(here: PipelinePosition) -> Advice | None:
    drawn = next((op for op in here.before if op.name == "shuffle" or has_random_name(op)), None)
    if drawn is None or not here.pipeline.training:
        return None
    what = drawn.options.get("function", "shuffle")
    now = f"the random values of {what} are cached and repeated in every pass"
    return Advice(now, f"move .cache() before {what}")


def has_random_name(operator: InputOperator) -> bool:
    """True if a function's name suggests that it draws random numbers."""
    function = str(operator.options.get("function", "")).lower()
    return operator.name == "map" and any(word in function for word in RANDOM_WORDS)


LEARNING_RULES = (
    AdviceRule(
        "data-end",
        (*SOURCES, "DataLoader"),
        "training has a batch for every step",
        _data_end,
        Effect.LEARNING,
        gain=0.9,
        about="repeat",
    ),
    AdviceRule(
        "evaluation-without-end",
        ("repeat",),
        "an evaluation ends with its data or with eval_steps",
        _evaluation_without_end,
        Effect.LEARNING,
        gain=0.9,
    ),
    AdviceRule(
        "shuffle-missing",
        SOURCES,
        "training samples are shuffled",
        _shuffle_missing,
        Effect.LEARNING,
        gain=0.6,
        about="shuffle",
    ),
    AdviceRule(
        "shuffle-after-batch",
        ("shuffle",),
        "samples are shuffled, not batches",
        _shuffle_after_batch,
        Effect.LEARNING,
        gain=0.5,
    ),
    AdviceRule(
        "shuffle-after-repeat",
        ("shuffle",),
        "each pass is shuffled separately",
        _shuffle_after_repeat,
        Effect.LEARNING,
        gain=0.4,
    ),
    AdviceRule(
        "window-small",
        ("shuffle",),
        "a window holds many batches, and at least one file",
        _window_small,
        Effect.LEARNING,
        gain=0.5,
    ),
    AdviceRule(
        "cached-draw",
        ("cache",),
        "random values are drawn again in each pass",
        _cached_draw,
        Effect.LEARNING,
        gain=0.5,
    ),
    AdviceRule(
        "shuffle-for-nothing",
        ("shuffle",),
        "an evaluation reads its data in order",
        _shuffle_for_nothing,
    ),
)


MUCH = 0.05  # fraction of a pass


def _remainder_kept(here: PipelinePosition) -> Advice | None:
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
        now = "the last batch of a pass may be incomplete, but costs as much as a full one"
        return Advice(now, change, Severity.INFO)
    rest = int(samples % size)
    wasted = (size - rest) / (samples - rest + size)
    count = f"{rest} samples" if rest > 1 else "one sample"
    now = f"the last batch of a pass has {count}, but costs as much as a batch of {size}"
    return Advice(now, change, Severity.WARNING if wasted > MUCH else Severity.INFO, gain=wasted)


def _samples_lost(here: PipelinePosition) -> Advice | None:
    samples, size = here.samples(), here.option("batch_size")
    if not here.option("drop_remainder") or not size or samples is None or samples in (0, inf):
        return None
    lost, training = int(samples % size), here.pipeline.training
    are_few, are_others = lost / samples < MUCH, here.comes_after("shuffle")
    if not lost or (training and are_few and are_others) or here.pipeline.has("DataLoader"):
        return None
    always = "" if are_others else ", the same ones in each pass"
    now = f"{lost} of {int(samples):,} samples per pass are dropped{always}"
    if not training:
        return Advice(now, "batch(…) without drop_remainder")
    change = f"move .repeat() before .batch({size}, …), which fills batches across passes"
    return Advice(now, change, Severity.INFO if are_few else Severity.WARNING)


BATCHING_RULES = (
    AdviceRule(
        "samples-lost",
        ("batch",),
        "every sample is used",
        _samples_lost,
        Effect.LEARNING,
        gain=0.2,
    ),
    AdviceRule(
        "remainder-kept",
        ("batch",),
        "training batches are full",
        _remainder_kept,
        gain=0.02,
    ),
)
