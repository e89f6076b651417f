"""Rules about sharding among streamers."""

from csrun.advice.input_fn_report.finding import Advice, AdviceRule, Effect, Severity
from csrun.advice.input_fn_report.pipeline import PipelinePosition


def _shard_count(here: PipelinePosition) -> Advice | None:
    count, streamers = here.option("count"), here.pipeline.streamers
    if streamers is None or count == streamers:
        return None
    lost = "be repeated" if count < streamers else "be missing"
    now = f"{count} shards for {streamers} streamers: some samples would {lost}; the run is refused"
    return Advice(now, "index, count = csrun.data.shard_info(), then .shard(count, index)")


def _shard_unknown(here: PipelinePosition) -> Advice | None:
    if here.pipeline.streamers is not None or here.option("count") == 1:
        return None
    now = f"count is {here.option('count')} for any number of streamers"
    change = "index, count = csrun.data.shard_info(), then .shard(count, index)"
    return Advice(now, change, Severity.INFO)


def _shard_late(here: PipelinePosition) -> Advice | None:
    if here.pipeline.indexable or here.option("count") == 1:
        return None
    worked = [op.name for op in here.before if op.name in ("map", "filter", "batch", "shuffle")]
    if not worked:
        return None
    now = f"every streamer runs {', '.join(dict.fromkeys(worked))} on the samples of all shards"
    return Advice(now, "move .shard(…) right after the source", gain=1 - 1 / here.option("count"))


def _files_uneven(here: PipelinePosition) -> Advice | None:
    files, streamers = here.option("of"), here.pipeline.streamers
    if not streamers or files % streamers == 0:
        return None
    more, least = files % streamers, files // streamers
    now = (
        f"{files} files for {streamers} streamers: {more} of them read {least + 1}, the others "
        f"{least}, so their samples are used more often"
    )
    fitting = next(n for n in range(streamers, 0, -1) if files % n == 0)
    change = f"split the data into a multiple of {streamers} files, or run {fitting} streamers"
    severity = Severity.INFO if least >= 10 else Severity.WARNING
    return Advice(now, change, severity)


def _stream_replayed(here: PipelinePosition) -> Advice | None:
    pipeline = here.pipeline
    if not pipeline.replayed or pipeline.streamers == 1:
        return None
    change = _way_out(here)
    if pipeline.streamers is None:
        now = "each of several streamers would make all batches and drop those of the others"
        return Advice(now, change, Severity.INFO)
    now = f"each of {pipeline.streamers} streamers makes all batches and uses only its own"
    return Advice(now, change, gain=1 - 1 / pipeline.streamers)


def _way_out(here: PipelinePosition) -> str:
    operators = {operator.name for operator in here.pipeline.operators}
    if "from_arrays" in operators and "filter" in operators:
        return "select the samples first: Dataset.from_arrays(features[kept], labels[kept])"
    if "from_arrays" in operators:
        return "use .shuffle(seed) without a window, before .repeat()"
    files, streamers = here.option("files"), here.pipeline.streamers or 1
    if files is not None:
        split = f"split the data into {streamers} files or more, and " if files < streamers else ""
        return f"{split}add .shard_files(), which gives each streamer its own files"
    if "DataLoader" in operators:
        return "return Dataset.from_arrays(…) of the data, or shard it by csrun.data.shard_info()"
    if "source" in operators:
        return "return a grain.MapDataset, without .to_iter_dataset(): it is indexable"
    return "return an indexable Dataset, or shard it by csrun.data.shard_info()"


SOURCES = ("from_arrays", "from_files", "from_batches", "DataLoader", "source")

SHARDING_RULES = (
    AdviceRule(
        "shard-count",
        ("shard",),
        "there is one shard per streamer",
        _shard_count,
        Effect.LEARNING,
        gain=0.7,
    ),
    AdviceRule(
        "shard-unknown",
        ("shard",),
        "there is one shard per streamer",
        _shard_unknown,
        Effect.LEARNING,
        gain=0.3,
    ),
    AdviceRule(
        "files-uneven",
        ("shard_files",),
        "streamers have equal numbers of files",
        _files_uneven,
        Effect.LEARNING,
        gain=0.3,
    ),
    AdviceRule(
        "stream-replayed",
        SOURCES,
        "a streamer makes only its own batches",
        _stream_replayed,
        gain=0.5,
        about="shard",
    ),
    AdviceRule(
        "shard-late",
        ("shard",),
        "samples of other shards are dropped first",
        _shard_late,
        gain=0.5,
    ),
)
