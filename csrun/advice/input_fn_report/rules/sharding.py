"""Rules about which streamer reads what."""

from csrun.advice.input_fn_report.finding import Advice, AdviceRule, Effect, Severity
from csrun.advice.input_fn_report.pipeline import Here


def _shard_count(here: Here) -> Advice | None:
    count, streamers = here.option("count"), here.pipeline.streamers
    if streamers is None or count == streamers:
        return None
    lost = "come more than once" if count < streamers else "never come"
    now = f"{count} shards for {streamers} streamers: some samples would {lost}; the run is refused"
    return Advice(now, "index, count = csrun.data.shard_info(), then .shard(count, index)")


def _shard_unknown(here: Here) -> Advice | None:
    if here.pipeline.streamers is not None or here.option("count") == 1:
        return None
    now = f"count is {here.option('count')}, however many streamers the run will have"
    change = "index, count = csrun.data.shard_info(), then .shard(count, index)"
    return Advice(now, change, Severity.INFO)


def _shard_late(here: Here) -> Advice | None:
    if here.pipeline.indexable or here.option("count") == 1:
        return None
    worked = [op.name for op in here.before if op.name in ("map", "filter", "batch", "shuffle")]
    if not worked:
        return None
    now = f"every streamer does {', '.join(dict.fromkeys(worked))} for the samples of all"
    return Advice(now, "write .shard(…) next to the source", gain=1 - 1 / here.option("count"))


def _files_uneven(here: Here) -> Advice | None:
    files, streamers = here.option("of"), here.pipeline.streamers
    if not streamers or files % streamers == 0:
        return None
    more, least = files % streamers, files // streamers
    now = (
        f"{files} files for {streamers} streamers: {more} of them read {least + 1}, the others "
        f"{least}, whose samples come more often"
    )
    fitting = next(n for n in range(streamers, 0, -1) if files % n == 0)
    change = f"write the data into a multiple of {streamers} files, or run {fitting} streamers"
    severity = Severity.INFO if least >= 10 else Severity.WARNING
    return Advice(now, change, severity)


def _stream_replayed(here: Here) -> Advice | None:
    pipeline = here.pipeline
    if not pipeline.replayed or pipeline.streamers == 1:
        return None
    change = _way_out(here)
    if pipeline.streamers is None:
        now = "of several streamers, each would produce all batches and throw away the others'"
        return Advice(now, change, Severity.INFO)
    now = f"each of {pipeline.streamers} streamers produces all batches, and uses its own"
    return Advice(now, change, gain=1 - 1 / pipeline.streamers)


def _way_out(here: Here) -> str:
    operators = {operator.name for operator in here.pipeline.operators}
    if "from_arrays" in operators and "filter" in operators:
        return "choose the samples before: Dataset.from_arrays(features[kept], labels[kept])"
    if "from_arrays" in operators:
        return "write .shuffle(seed) without a window, before .repeat()"
    files, streamers = here.option("files"), here.pipeline.streamers or 1
    if files is not None:
        split = f"split the data into {streamers} files or more, and " if files < streamers else ""
        return f"{split}add .shard_files(), which gives each streamer its own files"
    if "DataLoader" in operators:
        return "return Dataset.from_arrays(…) of the data, or give each streamer its own part"
    if "source" in operators:
        return "return a grain.MapDataset, without .to_iter_dataset(): it is read by number"
    return "return a Dataset that can be indexed, or part it by csrun.data.shard_info()"


SOURCES = ("from_arrays", "from_files", "from_batches", "DataLoader", "source")

SHARDING_RULES = (
    AdviceRule(
        "shard-count",
        ("shard",),
        "there is one shard for each streamer",
        _shard_count,
        Effect.LEARNING,
        gain=0.7,
    ),
    AdviceRule(
        "shard-unknown",
        ("shard",),
        "there is one shard for each streamer",
        _shard_unknown,
        Effect.LEARNING,
        gain=0.3,
    ),
    AdviceRule(
        "files-uneven",
        ("shard_files",),
        "streamers have equally many files",
        _files_uneven,
        Effect.LEARNING,
        gain=0.3,
    ),
    AdviceRule(
        "stream-replayed",
        SOURCES,
        "a streamer produces its own batches alone",
        _stream_replayed,
        gain=0.5,
        about="shard",
    ),
    AdviceRule(
        "shard-late",
        ("shard",),
        "what is not this streamer's is left out first",
        _shard_late,
        gain=0.5,
    ),
)
