"""What is found in a chain: each mistake under its name, and nothing in a chain without one."""

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

from csrun.data.report import Effect, Pipeline, Severity, examine
from csrun.data.stages import StageTime

Calls = tuple[tuple[str, dict[str, Any]], ...]

STREAM = {"indexable": False}
EVALUATION = {"training": False}
GOOD_STREAM: Calls = (
    files(),
    ("shard_files", {}),
    interleave(4, -1),
    shuffle(10_000),
    repeat(),
    batch(),
)

WELL_MADE: list[tuple[Calls, dict[str, Any]]] = [
    ((arrays(), shuffle(), repeat(), batch()), {}),
    ((arrays(), shuffle(), repeat(), batch(), map_of(parallel=-1)), {"cpus": 8}),
    ((arrays(), shuffle(), repeat(), batch(), map_of()), {"cpus": 1}),
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
        "end after step 20, the run wants 300 steps",
    ),
    (
        (arrays(), shard(4), shuffle(), batch()),
        {"cardinality": 5, "last_step": 21, "streamers": 4},
        "data-end",
        "end after step 20, the run wants 21 steps",
    ),
    ((arrays(), shuffle(), batch()), {"cardinality": 20}, "data-end", "the data are 20 batches"),
    ((arrays(), repeat(), batch()), EVALUATION, "evaluation-without-end", "for ever"),
    ((arrays(), repeat(), batch()), {}, "shuffle-missing", "the same order"),
    ((arrays(), batch(), shuffle(), repeat()), {}, "shuffle-after-batch", "the same samples"),
    (
        (files(), ("shard_files", {}), interleave(4, -1), repeat(), shuffle(10_000), batch()),
        STREAM,
        "shuffle-after-repeat",
        "twice before others",
    ),
    (
        (files(8, 80_000), ("shard_files", {}), shuffle(1000), repeat(), batch()),
        STREAM,
        "window-small",
        "window=1,000, a file has 10,000 samples",
    ),
    (
        (files(), ("shard_files", {}), interleave(4, -1), shuffle(100), repeat(), batch()),
        STREAM,
        "window-small",
        "window=100, 10 batches are 500 samples",
    ),
    ((arrays(), shuffle(window=10), repeat(), batch()), {}, "window-small", "a window of 10 mixes"),
    (
        (arrays(), shuffle(), map_of("random_crop"), ("cache", {}), repeat(), batch()),
        {"cpus": 1},
        "cached-draw",
        "what random_crop draws in the first pass",
    ),
    ((arrays(), shuffle(), batch()), EVALUATION, "shuffle-for-nothing", "in any order"),
    (
        (arrays(), shuffle(), batch(64), repeat()),
        {},
        "remainder-kept",
        "has 40 samples, the wafer computes all 64 rows",
    ),
    (
        (arrays(), shuffle(), batch(600, drop=True), repeat()),
        {},
        "samples-lost",
        "400 of 1,000 samples of a pass are left out: write .repeat() before .batch(600, …)",
    ),
    (
        (arrays(), batch(64, drop=True)),
        EVALUATION,
        "samples-lost",
        "40 of 1,000 samples of a pass are left out, always the same ones",
    ),
    (
        (arrays(), shuffle(), repeat(), batch(padded_shapes=((None,), ()))),
        {},
        "own-shapes",
        "its own longest sample",
    ),
    (
        (arrays(), shard(3), shuffle(), repeat(), batch()),
        {"streamers": 4},
        "shard-count",
        "3 shards for 4 streamers: some samples come more than once",
    ),
    (
        (arrays(), shard(5), shuffle(), repeat(), batch()),
        {"streamers": 4},
        "shard-count",
        "5 shards for 4 streamers: some samples never come",
    ),
    (
        (arrays(), shard(5), shuffle(), repeat(), batch()),
        {},
        "shard-unknown",
        "count is 5, however many streamers",
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
        "each of 4 streamers produces all batches, and uses its own: add .shard_files()",
    ),
    (
        (arrays(), ("filter", {"function": "is_even"}), shuffle(10_000), repeat(), batch()),
        {**STREAM, "streamers": 4},
        "stream-replayed",
        "choose the samples before: Dataset.from_arrays(features[kept], labels[kept])",
    ),
    (
        (files(), interleave(4, -1), map_of("parse"), shard(4), shuffle(10_000), repeat(), batch()),
        {**STREAM, "streamers": 4, "cpus": 1},
        "shard-late",
        "every streamer does map for the samples of all",
    ),
    (
        (arrays(), shuffle(), repeat(), map_of(), batch()),
        {"cpus": 4},
        "map-before-batch",
        "load is called for each sample, 50 times a batch: write .batch(50, …) before .map(load)",
    ),
    (
        (arrays(), shuffle(), repeat(), batch(), map_of()),
        {"cpus": 4},
        "map-serial",
        "load runs on one CPU of 4: map(load, num_parallel_calls=AUTOTUNE)",
    ),
    (
        (files(3), ("shard_files", {}), shuffle(10_000), repeat(), batch()),
        STREAM,
        "interleave-missing",
        "3 files are read one after the other: add .interleave(cycle_length=3, ",
    ),
    (
        (files(), ("shard_files", {}), interleave(4), shuffle(10_000), repeat(), batch()),
        STREAM,
        "interleave-serial",
        "its 4 files are read in turn, by one thread",
    ),
    (
        (files(), ("shard_files", {}), interleave(1, -1), shuffle(10_000), repeat(), batch()),
        STREAM,
        "interleave-serial",
        "cycle_length=1 reads one file at a time",
    ),
    (
        (arrays(), shuffle(), repeat(), batch(), ("prefetch", {"ahead": 2}), map_of("load", -1)),
        {},
        "prefetch-early",
        "map load is not done ahead",
    ),
]


@pytest.mark.parametrize(("calls", "facts", "rule", "stated"), MISTAKES)
def test_a_mistake_is_found(calls: Calls, facts: dict[str, Any], rule: str, stated: str) -> None:
    findings = {finding.rule: finding for finding in examine(Pipeline(chain(*calls), **facts))}
    assert rule in findings
    assert stated in findings[rule].message


def test_no_mistake_brings_findings_of_others() -> None:
    """One mistake, one finding; two of these chains have a second mistake."""
    several = {
        (rule, finding.rule)
        for calls, facts, rule, _ in MISTAKES
        for finding in examine(Pipeline(chain(*calls), **facts))
        if finding.rule != rule
    }
    assert several == {
        ("window-small", "interleave-missing"),
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


def test_an_expensive_function_that_is_always_the_same_can_be_cached() -> None:
    costs = {"map decode": StageTime(0.008, 0.008), "batch": StageTime(0.002, 0.002)}
    operators = chain(arrays(), map_of("decode", -1), shuffle(), repeat(), batch())
    rules = [finding.rule for finding in examine(Pipeline(operators, costs=costs, batch_s=0.01))]
    assert "cache-missing" in rules
    random = chain(arrays(), map_of("augment", -1), shuffle(), repeat(), batch())
    costs["map augment"] = costs.pop("map decode")
    rules = [finding.rule for finding in examine(Pipeline(random, costs=costs, batch_s=0.01))]
    assert "cache-missing" not in rules


def test_reading_that_waits_is_done_ahead() -> None:
    costs = {"from_files": StageTime(0.006, 0.001), "map load": StageTime(0.004, 0.004)}
    operators = chain(files(1), shuffle(), repeat(), batch(), map_of("load", -1))
    [finding] = examine(Pipeline(operators, costs=costs, batch_s=0.01))
    assert finding.rule == "prefetch-missing"
    assert "50% of its time" in finding.now
    assert finding.gain == pytest.approx(0.5)
