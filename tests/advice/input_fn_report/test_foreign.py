"""Findings in data sets of other libraries, from their attributes."""

from typing import Any

import numpy as np
import pytest
from support.chains import chain

from csrun.advice.input_fn_report import Pipeline, examine, probe
from csrun.data import as_dataset

Options = dict[str, Any]


def loader(**options: Any) -> tuple[str, Options]:
    """DataLoader with arguments that cause no findings."""
    fine: Options = {
        "iterable": "DataLoader",
        "dataset": "Digits",
        "samples": 1000,
        "in_memory": False,
        "shuffle": True,
        "num_workers": 0,
        "persistent_workers": False,
    }
    return "DataLoader", fine | options


def shuffle(seed: int | None = 1) -> tuple[str, Options]:
    return "shuffle", {"kind": "whole", "seed": seed, "window": None}


def batch(drop: bool = True) -> tuple[str, Options]:
    return "batch", {"batch_size": 50, "drop_remainder": drop}


WORKERS = ("prefetch", {"ahead": 8, "num_workers": 4, "prefetch_factor": 2})
THREADS = ("prefetch", {"ahead": 500, "num_threads": 16})
REPEAT = ("repeat", {"count": None})
SOURCE = ("source", {"iterable": "MapDataset", "dataset": "list", "samples": 1000})
STREAM = ("source", {"iterable": "PrefetchIterDataset", "dataset": "list", "samples": 1000})
DECODE = ("map", {"function": "decode", "num_parallel_calls": None})
ONE = {"streamers": 1, "cpus": 2, "indexable": False, "last_step": 20}
TWO = {**ONE, "streamers": 2}
INDEXED = {"streamers": 2, "cpus": 2}

CHAINS: list[tuple[tuple[tuple[str, Options], ...], Options, dict[str, str]]] = [
    ((loader(), shuffle(), batch()), ONE, {}),
    (
        (SOURCE, shuffle(None), REPEAT, batch()),
        INDEXED,
        {"shuffle-unseeded": ".shuffle(seed=1)"},
    ),
    (
        (loader(), shuffle(), batch()),
        TWO,
        {"stream-replayed": "from_arrays"},
    ),
    ((loader(shuffle=False), batch()), ONE, {"loader-in-order": "shuffle=True"}),
    ((loader(shuffle=False), batch()), {**ONE, "training": False}, {}),
    (
        (loader(samples=1001), shuffle(), batch(drop=False)),
        ONE,
        {"remainder-kept": "DataLoader(…, drop_last=True)"},
    ),
    ((loader(samples=1001), shuffle(), batch()), ONE, {}),
    (
        (loader(), shuffle(), batch()),
        {**ONE, "last_step": 21},
        {"data-end": "Dataset.from_batches(loader).repeat()"},
    ),
    (
        (loader(in_memory=True, dataset="TensorDataset"), shuffle(), batch()),
        ONE,
        {"loader-sample-by-sample": "TensorDataset reads samples one by one"},
    ),
    (
        (loader(num_workers=4), shuffle(), batch(), WORKERS),
        ONE,
        {"workers": "num_workers=0", "workers-started-anew": "persistent_workers=True"},
    ),
    ((SOURCE, shuffle(), REPEAT, batch()), INDEXED, {}),
    ((SOURCE, REPEAT, batch()), INDEXED, {"shuffle-missing": ".shuffle(seed=1)"}),
    (
        (SOURCE, shuffle(), REPEAT, DECODE, batch()),
        INDEXED,
        {"map-before-batch": "before .map(decode)"},
    ),
    (
        (STREAM, shuffle(), REPEAT, batch()),
        TWO,
        {"stream-replayed": "return a grain.MapDataset"},
    ),
    ((STREAM, shuffle(), REPEAT, batch(), WORKERS), ONE, {"workers": "remove mp_prefetch"}),
    ((STREAM, shuffle(), REPEAT, batch(), THREADS), ONE, {"threads": "num_threads=8"}),
]


@pytest.mark.parametrize(("calls", "facts", "expected"), CHAINS)
def test_what_is_found(
    calls: tuple[tuple[str, Options], ...], facts: Options, expected: dict[str, str]
) -> None:
    findings = {finding.rule: finding for finding in examine(Pipeline(chain(*calls), **facts))}
    assert set(findings) == set(expected)
    for rule, stated in expected.items():
        assert stated in findings[rule].message


def test_the_worker_processes_of_all_streamers_are_counted() -> None:
    calls = chain(loader(num_workers=4, persistent_workers=True), shuffle(), batch(), WORKERS)
    found = {f.rule: f for f in examine(Pipeline(calls, streamers=3, cpus=8, indexable=False))}
    assert "starts 4 more worker processes, 12 in total" in found["workers"].now
    assert found["workers"].severity == "info"


def test_a_real_loader_of_arrays_which_needs_no_seed() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader, TensorDataset

    values = torch.arange(100.0)
    data = as_dataset(DataLoader(TensorDataset(values, values), batch_size=10, shuffle=True))
    facts = {"indexable": data.indexable, "cardinality": data.cardinality}
    found = examine(Pipeline(data.operators, streamers=2, last_step=30, **facts))
    assert [finding.rule for finding in found] == ["data-end", "loader-sample-by-sample"]
    assert "the data ends after step 10 of 30" in found[0].now


def test_a_real_grain_data_set() -> None:
    grain = pytest.importorskip("grain")
    numbers = grain.MapDataset.range(100).map(np.atleast_1d)
    data = as_dataset(numbers.repeat().batch(10))
    assert probe(data).batch_s > 0
    found = examine(Pipeline(data.operators, indexable=data.indexable, streamers=2))
    assert [finding.rule for finding in found] == ["shuffle-missing", "map-before-batch"]
    assert probe(as_dataset(numbers.batch(10).to_iter_dataset())).costs == {}


def test_what_another_version_does_not_tell_is_passed_over() -> None:
    unknown = {"batch_size": None, "drop_remainder": None, "cycle_length": None, "window": 3}
    names = ("source", "shuffle", "interleave", "map", "batch", "prefetch")
    calls = chain(*((name, unknown) for name in names))
    found = examine(Pipeline(calls, streamers=2, cpus=2))
    assert {finding.rule for finding in found} == {"shuffle-unseeded", "window-small"}
