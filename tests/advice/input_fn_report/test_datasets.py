"""Chains as users write them: findings, their lines, and measurements."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csrun.advice.input_fn_report import Pipeline, examine, probe
from csrun.data import AUTOTUNE, Dataset
from csrun.data.formats.base import Sample
from csrun.data.sharding import sharded_as


class Numbers:
    """File of numbers, one per line, read sequentially."""

    def samples(self, path: Path) -> Iterator[Sample]:
        for line in path.read_text().split():
            yield (np.array(int(line)),)


@pytest.fixture
def pattern(tmp_path: Path) -> str:
    for number in range(5):
        lines = "\n".join(map(str, range(100 * number, 100 * number + 100)))
        (tmp_path / f"part-{number}.txt").write_text(lines)
    return str(tmp_path / "part-*.txt")


def arrays() -> Dataset:
    return Dataset.from_arrays(np.arange(1000), np.arange(1000))


def double(*values: Any) -> tuple[Any, ...]:
    return tuple(2 * value for value in values)


def pipeline_of(dataset: Dataset, **facts: Any) -> Pipeline:
    known = {"indexable": dataset.indexable, "cardinality": dataset.cardinality}
    return Pipeline(dataset.operators, **known, **facts)


CHAINS: list[tuple[Callable[[], Dataset], dict[str, Any], set[str]]] = [
    (lambda: arrays().shuffle(1).repeat().batch(50).map(double, AUTOTUNE), {}, set()),
    (lambda: arrays().repeat().batch(50), {}, {"shuffle-missing"}),
    (lambda: arrays().shuffle(1).batch(50), {"last_step": 20}, set()),
    (lambda: arrays().shuffle(1).batch(50), {"last_step": 21}, {"data-end"}),
    (lambda: arrays().batch(50).shuffle(1).repeat(), {}, {"shuffle-after-batch"}),
    (
        lambda: arrays().filter(lambda a, b: a > 3).repeat().shuffle(1, window=500).batch(50),
        {"streamers": 2},
        {"shuffle-after-repeat", "stream-replayed"},
    ),
    (lambda: arrays().shuffle(1).repeat().map(double).batch(50), {}, {"map-before-batch"}),
    (lambda: arrays().shuffle(1).cache().repeat().batch(50), {}, {"cached-draw"}),
    (lambda: arrays().shuffle(1).batch(300).repeat(), {}, {"remainder-kept"}),
    (lambda: arrays().shuffle(1).batch(300, True).repeat(), {}, {"samples-lost"}),
    (lambda: arrays().shard(2, 0).shuffle(1).repeat().batch(50), {"streamers": 2}, set()),
    (lambda: arrays().shard(3, 0).shuffle(1).repeat().batch(50), {"streamers": 2}, {"shard-count"}),
    (
        lambda: arrays().filter(lambda a, b: a > 3).shuffle(1, window=500).repeat().batch(50),
        {"streamers": 2},
        {"stream-replayed"},
    ),
]


@pytest.mark.parametrize(("chain", "facts", "rules"), CHAINS)
def test_what_is_found_in_a_chain(
    chain: Callable[[], Dataset], facts: dict[str, Any], rules: set[str]
) -> None:
    findings = examine(pipeline_of(chain(), **facts))
    assert {finding.rule for finding in findings} == rules
    assert all(finding.operator.where.startswith("test_datasets.py:") for finding in findings)


def test_what_is_found_in_files_that_are_read_in_turn(pattern: str) -> None:
    files = Dataset.from_files(pattern, Numbers())
    mixed = files.shuffle(1, window=500).repeat().batch(50)
    rules = [finding.rule for finding in examine(pipeline_of(mixed, streamers=2))]
    assert sorted(rules) == ["interleave-missing", "stream-replayed"]
    with sharded_as(0, 2):
        sharded = files.shard_files().interleave(3, 16, num_parallel_calls=AUTOTUNE)
        fine = sharded.shuffle(1, window=500).repeat().batch(50)
    [finding] = examine(pipeline_of(fine, streamers=2))
    assert (finding.rule, finding.severity) == ("files-uneven", "warning")
    assert "5 files for 2 streamers: 1 of them read 3, the others 2" in finding.now


def test_a_probe_finds_what_a_stage_takes() -> None:
    def slow(*values: Any) -> tuple[Any, ...]:
        time.sleep(0.004)
        return values

    dataset = arrays().shuffle(1).repeat().batch(50).map(slow)
    dataset.element_spec()
    seen = probe(dataset)
    cost = seen.costs["map slow"]
    assert cost.wall_s >= 0.004
    assert cost.cpu_s < cost.wall_s / 2
    assert seen.batch_s >= cost.wall_s
    [finding] = examine(pipeline_of(dataset, costs=seen.costs))
    assert finding.rule == "map-waits"


def test_a_probe_takes_nothing_from_the_run(pattern: str) -> None:
    for dataset in (
        arrays().shuffle(1).repeat(2).batch(300),
        Dataset.from_files(pattern, Numbers()).batch(90),
        Dataset.from_batches(iter([(np.arange(3),), (np.arange(4),)])),
    ):
        spec = dataset.element_spec()
        probe(dataset)
        sizes = [len(batch[0]) for batch in dataset]
        assert sizes[0] == spec[0].shape[0]
        assert sum(sizes) in (2000, 500, 7)


@pytest.mark.parametrize(("pause_s", "most"), [(0.0, 9), (0.06, 1)])
def test_a_probe_reads_few_batches_and_no_second_one_that_is_slow(
    pause_s: float, most: int
) -> None:
    calls = []

    def counted(*values: Any) -> tuple[Any, ...]:
        calls.append(1)
        time.sleep(pause_s)
        return values

    dataset = arrays().repeat().batch(50).map(counted)
    dataset.element_spec()
    assert "map counted" in probe(dataset).costs
    assert len(calls) <= most


def test_the_first_batch_of_a_window_is_not_charged_with_all_of_it() -> None:
    def slow(*values: Any) -> tuple[Any, ...]:
        time.sleep(1e-4)
        return values

    kept = arrays().filter(lambda a, b: True)
    dataset = kept.map(slow).shuffle(1, window=900).repeat().batch(10)
    dataset.element_spec()
    whole = dataset.clock.stages["map slow"].wall_s
    assert probe(dataset).costs["map slow"].wall_s == pytest.approx(whole * 10 / 910)


def test_what_fails_later_is_left_to_the_run() -> None:
    def fails(a: Any, b: Any) -> tuple[Any, Any]:
        if 300 in a:
            raise ValueError("300")
        return a, b

    dataset = arrays().batch(50).map(fails)
    dataset.element_spec()
    assert probe(dataset).costs == {}


class Waiting(Numbers):
    """Such files on a disk that delays every sixteenth sample."""

    def samples(self, path: Path) -> Iterator[Sample]:
        for number, sample in enumerate(super().samples(path)):
            if number % 16 == 0:
                time.sleep(0.005)
            yield sample


def seconds(dataset: Dataset, batches: int = 16) -> float:
    """Best of three measurements."""
    found = []
    for _ in range(3):
        reader = dataset.batches()
        next(reader)
        begun = time.perf_counter()
        for _ in range(batches):
            next(reader)
        found.append(time.perf_counter() - begun)
    return min(found)


@pytest.mark.alone
def test_whoever_does_as_it_says_of_waiting_is_faster(pattern: str) -> None:
    def slow(*values: Any) -> tuple[Any, ...]:
        time.sleep(0.01)
        return values

    samples = arrays().shuffle(1).repeat().batch(50)
    files = Dataset.from_files(pattern, Waiting())
    changes = [
        ("map-waits", samples.map(slow), samples.map(slow, num_parallel_calls=8)),
        (
            "interleave-missing",
            files.repeat().batch(50),
            files.interleave(4, block_length=16, num_parallel_calls=AUTOTUNE).repeat().batch(50),
        ),
    ]
    for rule, before, after in changes:
        seen = probe(before)
        findings = {f.rule: f for f in examine(pipeline_of(before, costs=seen.costs))}
        assert seconds(after) < 0.8 * seconds(before)
        assert rule not in {f.rule for f in examine(pipeline_of(after, costs=seen.costs))}
        assert findings[rule].gain > 0.3
