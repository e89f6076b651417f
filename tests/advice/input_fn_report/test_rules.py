"""Findings in a chain: each mistake by its name, and none in a chain without mistakes."""

from typing import Any

import pytest
from support.chains import (
    arrays,
    batch,
    chain,
    files,
    interleave,
    map_of,
    repeat,
    shard,
    shuffle,
)

from csrun.advice.input_fn_report import Effect, Finding, Pipeline, Severity, examine
from csrun.data.input_operators import StageTime

Calls = tuple[tuple[str, dict[str, Any]], ...]

STREAM = {"indexable": False}
FILTER = ("filter", {"function": "is_even"})
SHARDED = ("shard_files", {"files": 2, "of": 8})
EVALUATION = {"training": False}
GOOD_STREAM: Calls = (
    files(),
    SHARDED,
    interleave(4, -1),
    shuffle(10_000),
    repeat(),
    batch(),
)

WELL_MADE: list[tuple[Calls, dict[str, Any]]] = [
    ((arrays(), shuffle(), repeat(), batch()), {}),
    ((arrays(), shuffle(), repeat(), batch(), map_of(parallel=-1)), {"cpus": 8}),
    ((arrays(), shuffle(), repeat(), batch(), map_of()), {"cpus": 8}),
    ((arrays(), shuffle(), batch(50), repeat()), {}),
    ((arrays(), shuffle(), batch(64, drop=True), repeat()), {}),
    ((arrays(), shard(4), shuffle(), repeat(), batch()), {"streamers": 4}),
    (GOOD_STREAM, STREAM),
    (GOOD_STREAM, {**STREAM, "streamers": 4}),
    ((arrays(), batch()), EVALUATION),
    ((arrays(), batch(64)), EVALUATION),
    ((arrays(), shuffle(), repeat(4), batch()), {"cardinality": 80, "last_step": 80}),
    ((arrays(), repeat(), batch()), {**EVALUATION, "last_step": 3}),
]


@pytest.mark.parametrize(("calls", "facts"), WELL_MADE)
def test_nothing_is_found_in_a_well_made_chain(calls: Calls, facts: dict[str, Any]) -> None:
    assert examine(Pipeline(chain(*calls), **facts)) == ()


# chain, what is known of it besides, and what is found: the rule and the numbers that it states
MISTAKES: list[tuple[Calls, dict[str, Any], str, str]] = [
    (
        (arrays(), shuffle(), batch()),
        {"cardinality": 20, "last_step": 300},
        "data-end",
        "ends after step 20 of 300",
    ),
    (
        (arrays(), shard(4), shuffle(), batch()),
        {"cardinality": 5, "last_step": 21, "streamers": 4},
        "data-end",
        "ends after step 20 of 21",
    ),
    ((arrays(), shuffle(), batch()), {"cardinality": 20}, "data-end", "after 20 batches"),
    (
        (arrays(), repeat(), batch()),
        EVALUATION,
        "evaluation-without-end",
        "makes the evaluation endless",
    ),
    ((arrays(), repeat(), batch()), {}, "shuffle-missing", "the same order"),
    ((arrays(), batch(), shuffle(), repeat()), {}, "shuffle-after-batch", "the same samples"),
    (
        (files(), SHARDED, interleave(4, -1), repeat(), shuffle(10_000), batch()),
        STREAM,
        "shuffle-after-repeat",
        "repeated before others",
    ),
    (
        (files(8, 80_000), SHARDED, FILTER, shuffle(1000), repeat(), batch()),
        STREAM,
        "window-small",
        "window=1,000, a file has 10,000 samples",
    ),
    (
        (files(), SHARDED, interleave(4, -1), shuffle(100), repeat(), batch()),
        STREAM,
        "window-small",
        "window=100, 10 batches are 500 samples",
    ),
    (
        (arrays(), map_of("random_crop"), ("cache", {}), shuffle(), repeat(), batch()),
        {"cpus": 1},
        "cached-draw",
        "the random values of random_crop are cached",
    ),
    ((arrays(), shuffle(), batch()), EVALUATION, "shuffle-for-nothing", "not depend on the order"),
    (
        (arrays(), shuffle(), batch(64), repeat()),
        {},
        "remainder-kept",
        "has 40 samples, but costs as much as a batch of 64",
    ),
    (
        (arrays(), shuffle(), batch(600, drop=True), repeat()),
        {},
        "samples-lost",
        "400 of 1,000 samples per pass are dropped: move .repeat() before .batch(600, …)",
    ),
    (
        (arrays(), batch(64, drop=True)),
        EVALUATION,
        "samples-lost",
        "40 of 1,000 samples per pass are dropped, the same ones in each pass",
    ),
    (
        (arrays(), shard(3), shuffle(), repeat(), batch()),
        {"streamers": 4},
        "shard-count",
        "3 shards for 4 streamers: some samples would be repeated",
    ),
    (
        (arrays(), shard(5), shuffle(), repeat(), batch()),
        {"streamers": 4},
        "shard-count",
        "5 shards for 4 streamers: some samples would be missing",
    ),
    (
        (arrays(), shard(5), shuffle(), repeat(), batch()),
        {},
        "shard-unknown",
        "count is 5 for any number of streamers",
    ),
    (
        GOOD_STREAM,
        {**STREAM, "streamers": 3},
        "files-uneven",
        "8 files for 3 streamers: 2 of them read 3, the others 2",
    ),
    (
        (files(), interleave(4, -1), shuffle(10_000), repeat(), batch()),
        {**STREAM, "streamers": 4},
        "stream-replayed",
        "each of 4 streamers makes all batches and uses only its own: add .shard_files()",
    ),
    (
        (arrays(), FILTER, shuffle(10_000), repeat(), batch()),
        {**STREAM, "streamers": 4},
        "stream-replayed",
        "select the samples first: Dataset.from_arrays(features[kept], labels[kept])",
    ),
    (
        (files(), interleave(4, -1), map_of("parse"), shard(4), shuffle(10_000), repeat(), batch()),
        {**STREAM, "streamers": 4, "cpus": 1},
        "shard-late",
        "every streamer runs map on the samples of all shards",
    ),
    (
        (arrays(), shuffle(), repeat(), map_of(), batch()),
        {"cpus": 4},
        "map-before-batch",
        "load is called per sample, 50 times per batch: move .batch(50, …) before .map(load)",
    ),
    (
        (files(3), SHARDED, shuffle(10_000), repeat(), batch()),
        STREAM,
        "interleave-missing",
        "3 files are read sequentially, waiting for each read: .interleave(3, block_length=16, ",
    ),
    (
        (files(), SHARDED, interleave(4), shuffle(10_000), repeat(), batch()),
        STREAM,
        "interleave-serial",
        "its 4 files are read by one thread",
    ),
    (
        (files(), SHARDED, interleave(1, -1), shuffle(10_000), repeat(), batch()),
        STREAM,
        "interleave-serial",
        "cycle_length=1 reads one file at a time",
    ),
]


@pytest.mark.parametrize(("calls", "facts", "rule", "stated"), MISTAKES)
def test_a_mistake_is_found(calls: Calls, facts: dict[str, Any], rule: str, stated: str) -> None:
    findings = {finding.rule: finding for finding in examine(Pipeline(chain(*calls), **facts))}
    assert rule in findings
    assert stated in findings[rule].message


def test_no_mistake_brings_findings_of_others() -> None:
    """One finding per mistake; one of these chains has a second mistake."""
    several = {
        (rule, finding.rule)
        for calls, facts, rule, _ in MISTAKES
        for finding in examine(Pipeline(chain(*calls), **facts))
        if finding.rule != rule
    }
    assert several == {
        ("shard-late", "map-before-batch"),
    }


def test_what_is_learned_comes_before_speed_and_speed_by_its_gain() -> None:
    operators = chain(arrays(), repeat(), map_of("slow"), map_of("quick"), batch())
    costs = {"map quick": StageTime(0.001, 0.001), "map slow": StageTime(0.009, 0.009)}
    found = examine(Pipeline(operators, cpus=4, costs=costs, batch_s=0.01))
    assert [(f.rule, f.operator.where) for f in found] == [
        ("shuffle-missing", "data.py:1"),
        ("map-before-batch", "data.py:3"),
        ("map-before-batch", "data.py:4"),
    ]
    assert found[0].effect is Effect.LEARNING
    assert [f.gain for f in found[1:]] == pytest.approx([0.81, 0.09])


def test_what_costs_next_to_nothing_is_no_warning() -> None:
    operators = chain(arrays(), shuffle(), repeat(), map_of(), batch())
    costs = {"map load": StageTime(1e-6, 1e-6), "from_arrays": StageTime(1e-3, 1e-3)}
    unmeasured, measured = (
        examine(Pipeline(operators, costs=known))[0].severity for known in ({}, costs)
    )
    assert (unmeasured, measured) == (Severity.WARNING, Severity.INFO)


def found(calls: Calls, costs: dict[str, tuple[float, float]], **facts: Any) -> dict[str, Finding]:
    """Findings for stages with these (wall, CPU) milliseconds per batch."""
    times = {name: StageTime(wall / 1000, cpu / 1000) for name, (wall, cpu) in costs.items()}
    total = sum(time.wall_s for time in times.values())
    pipeline = Pipeline(chain(*calls), costs=times, batch_s=total, **facts)
    return {finding.rule: finding for finding in examine(pipeline)}


def test_an_expensive_function_that_is_always_the_same_can_be_cached() -> None:
    calls = (arrays(), map_of("decode"), shuffle(), repeat(), batch())
    assert found(calls, {"map decode": (8, 8), "batch": (2, 2)})["cache-missing"].gain == 0.8
    assert "cache-missing" not in found(calls, {"map decode": (0.8, 0.8), "batch": (0.2, 0.2)})
    random = (arrays(), map_of("augment"), shuffle(), repeat(), batch())
    assert "cache-missing" not in found(random, {"map augment": (8, 8), "batch": (2, 2)})


MAPPED: Calls = (arrays(), shuffle(), repeat(), batch(), map_of())


def test_a_function_that_computes_long_uses_all_cpus() -> None:
    costs = {"map load": (6.0, 6.0), "from_arrays": (4.0, 4.0)}
    rules = found(MAPPED, costs, cpus=4)
    assert set(rules) == {"map-serial"}
    assert "load computes on one CPU of 4" in rules["map-serial"].now
    assert rules["map-serial"].gain == pytest.approx(0.6 * 3 / 4)
    assert not found(MAPPED, costs, cpus=1)
    assert not found(MAPPED, {"map load": (0.6, 0.6), "from_arrays": (0.4, 0.4)}, cpus=4)


def test_a_function_that_waits_is_called_several_times_at_once() -> None:
    rules = found(MAPPED, {"map load": (2.1, 0.1), "from_arrays": (0.4, 0.4)}, cpus=1)
    assert set(rules) == {"map-waits"}
    assert "load waits 2.0 ms per batch" in rules["map-waits"].now
    assert rules["map-waits"].gain == pytest.approx(2.0 / 2.5 * 7 / 8)


def test_a_call_for_each_sample_of_a_stream_is_too_little_for_a_thread() -> None:
    calls = (files(1), map_of(), repeat(), batch(50, padded_shapes=[(9,)]))
    costs = {"map load": (20.0, 20.0), "from_files": (2.0, 2.0)}
    assert "map-serial" not in found(calls, costs, cpus=4, indexable=False)
    costs["map load"] = (60.0, 60.0)
    assert "map-serial" in found(calls, costs, cpus=4, indexable=False)


def test_the_first_function_of_samples_of_any_length_is_called_for_each() -> None:
    lines = ("from_files", {"files": 1, "format": "Lines"})
    calls = (lines, map_of("parse"), map_of("scale"), shuffle(10_000), repeat(), batch())
    found_in = examine(Pipeline(chain(*calls), indexable=False, streamers=1))
    assert [(f.rule, f.operator.where) for f in found_in] == [("map-before-batch", "data.py:3")]


def test_threads_for_next_to_no_work() -> None:
    calls = (arrays(), shuffle(), repeat(), batch(), map_of(parallel=-1))
    rules = found(calls, {"map load": (0.03, 0.03), "from_arrays": (0.02, 0.02)})
    assert "a batch takes 0.05 ms" in rules["handed-over"].now
    assert "its ring" in rules["handed-over"].change
    assert not found(calls, {"map load": (3.0, 3.0), "from_arrays": (2.0, 2.0)})


PREFETCH = ("prefetch", {"ahead": 2})
LITTLE = {"map load": (0.03, 0.03), "from_arrays": (0.02, 0.02)}
WAITING = {"map load": (4.1, 0.1), "from_arrays": (0.4, 0.4)}


def test_a_prefetch_ahead_of_a_ring_is_left_out() -> None:
    for costs in (LITTLE, WAITING, {}):
        rules = found((*MAPPED, PREFETCH), costs, cpus=1)
        assert rules["prefetch-beside-ring"].severity == "info"
        assert "handed-over" not in rules


def test_a_process_without_a_ring_makes_batches_that_wait_ahead() -> None:
    alone = {"cpus": 1, "has_ring": False}
    missing = found(MAPPED, WAITING, **alone)["prefetch-missing"]
    assert (missing.about, missing.severity) == ("prefetch", "info")
    assert "each step is idle for 4.0 ms" in missing.now
    assert ".prefetch(2)" in missing.change
    assert "prefetch-missing" not in found(MAPPED, WAITING, cpus=1)
    assert not found(MAPPED, {"from_arrays": (4.0, 4.0)}, **alone)
    ahead = (*MAPPED[:-1], map_of(parallel=8))
    assert not found(ahead, WAITING, **alone)
    assert set(found((*MAPPED, PREFETCH), WAITING, **alone)) == {"map-waits"}
    [little] = found((*MAPPED, PREFETCH), LITTLE, **alone).values()
    assert little.change == "remove prefetch"


ONE_BY_ONE: Calls = (files(), SHARDED, shuffle(10_000), repeat(), batch())


def test_files_are_read_at_once_where_reading_waits() -> None:
    costs = {"from_files": (6.0, 1.0), "batch": (4.0, 4.0)}
    [finding] = found(ONE_BY_ONE, costs, indexable=False).values()
    assert finding.rule == "interleave-missing"
    assert finding.severity == "warning"
    assert finding.gain == pytest.approx(0.5 * 3 / 4)
    assert not found(ONE_BY_ONE, {**costs, "from_files": (6.0, 6.0)}, indexable=False)


def test_a_step_for_each_sample_of_a_file() -> None:
    calls = (files(), SHARDED, interleave(4, -1, block=1), shuffle(10_000), repeat(), batch())
    [finding] = found(calls, {}, indexable=False).values()
    assert finding.rule == "blocks-small"
    assert "block_length=1: stages process too few samples at a time" in finding.now


def test_a_cache_of_what_was_shuffled() -> None:
    finding = found((arrays(), shuffle(), ("cache", {}), repeat(), batch()), {})["cached-draw"]
    assert "the random values of shuffle" in finding.now


def test_what_a_cache_keeps_takes_its_time_only_once() -> None:
    calls = (arrays(), map_of("decode"), ("cache", {}), shuffle(), repeat(), batch())
    assert not found(calls, {"map decode": (9.0, 8.0)}, cpus=4)
    assert Pipeline(chain(*calls), batch_s=0.01).samples_per_s() is None


def test_a_share_of_the_files_has_nobody_knows_how_many_samples() -> None:
    calls = (files(8, 1000), SHARDED, shuffle(), batch(64), repeat())
    [finding] = examine(Pipeline(chain(*calls), streamers=4))
    assert finding.rule == "remainder-kept"
    assert "may be incomplete" in finding.now
