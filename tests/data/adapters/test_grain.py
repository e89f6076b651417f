"""Attributes of grain's data sets, which are read by index."""

import subprocess
import sys
from itertools import islice
from typing import Any

import numpy as np
import pytest

from csrun.data import DataError, as_dataset
from csrun.data.adapters import describe, indexed
from csrun.data.input_operators import Level

grain = pytest.importorskip("grain")

SOURCE = list(range(10))


def chain(count: int | None = None) -> Any:
    return (
        grain.MapDataset.source(SOURCE)
        .shuffle(seed=3)
        .map(doubled)
        .repeat(count)
        .batch(4, drop_remainder=True)
    )


def doubled(x: Any) -> Any:
    return 2 * x


def test_a_chain_is_told_from_its_source_on() -> None:
    told = describe(chain(5).map(doubled))
    assert [(op.name, op.level) for op in told] == [
        ("source", Level.SAMPLE),
        ("shuffle", Level.SAMPLE),
        ("map", Level.SAMPLE),
        ("repeat", Level.SAMPLE),
        ("batch", Level.SAMPLE),
        ("map", Level.BATCH),
    ]
    source, shuffle, mapped, repeat, batch, _ = (dict(op.options) for op in told)
    assert (source["samples"], source["dataset"]) == (10, "list")
    assert shuffle == {"kind": "whole", "seed": 3, "window": None}
    assert mapped["function"] == "doubled"
    assert repeat == {"count": 5}
    assert batch == {"batch_size": 4, "drop_remainder": True}


def test_an_iterated_chain_is_told_with_what_it_reads_ahead() -> None:
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=5)
    small = grain.MapDataset.source(np.arange(10)).to_iter_dataset(options)
    small = grain.experimental.WindowShuffleIterDataset(small, window_size=4, seed=9)
    small = small.filter(bool).batch(3)
    told = {op.name: dict(op.options) for op in describe(small)}
    assert list(told) == ["source", "prefetch", "shuffle", "filter", "batch"]
    assert told["prefetch"] == {"ahead": 5, "num_threads": 2}
    assert told["shuffle"] == {"kind": "window", "seed": 9, "window": 4}
    workers = small.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=2))
    last = describe(workers)[-1]
    assert (last.name, last.level) == ("prefetch", Level.BATCH)
    assert last.options["num_workers"] == 2


def test_a_loader_is_told() -> None:
    loader = grain.DataLoader(
        data_source=SOURCE,
        sampler=grain.samplers.IndexSampler(10, shuffle=True, seed=3),
        operations=[grain.transforms.Batch(4, drop_remainder=True)],
        worker_count=0,
    )
    told = {op.name: dict(op.options) for op in describe(loader)}
    assert list(told) == ["source", "shuffle", "repeat", "batch"]
    assert told["shuffle"]["seed"] == 3
    assert told["repeat"] == {"count": None}
    assert told["batch"] == {"batch_size": 4, "drop_remainder": True}
    assert indexed(loader) is None
    first = next(iter(loader))
    (batch,) = next(as_dataset(loader).batches())
    np.testing.assert_array_equal(batch, first)


@pytest.mark.parametrize("count", [None, 3])
def test_streamers_in_turn_give_what_grain_gives(count: int | None) -> None:
    made = as_dataset(chain(count))
    expected = [batch.tolist() for batch in islice(iter(chain(count)), 7)]
    assert made.indexable
    assert made.cardinality == (None if count is None else 7)
    for streamer in range(3):
        own = islice(made.batches(streamer, 3), len(expected[streamer::3]))
        assert [batch.tolist() for (batch,) in own] == expected[streamer::3]


def test_a_map_after_it_sees_its_batches() -> None:
    made = as_dataset(chain(1)).map(lambda x: (x, x + 1))
    for x, y in made:
        np.testing.assert_array_equal(x + 1, y)
    failing = as_dataset(chain(1)).map(lambda x: 1 // int((x - x).sum()))
    with pytest.raises(ZeroDivisionError) as caught:
        next(failing.batches(1))
    assert caught.value.__notes__[0].endswith("failed at batch 1, row 0")


def test_a_filtered_chain_has_holes_and_is_read_in_turn() -> None:
    filtered = grain.MapDataset.source(np.arange(1, 9)).filter(lambda x: x % 2)
    assert indexed(filtered) is None
    assert not as_dataset(filtered).indexable
    assert [int(x) for (x,) in as_dataset(filtered)] == [1, 3, 5, 7]


def test_a_hole_where_none_was_expected_is_named() -> None:
    class Holes(grain.MapDataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: Any) -> Any:
            return np.zeros(2) if index == 0 else None

    batches = as_dataset(Holes()).batches()
    next(batches)
    with pytest.raises(DataError, match="item 1 of the Holes: every item must exist"):
        next(batches)


def test_grain_and_torch_are_not_imported_for_others() -> None:
    program = (
        "import sys; from csrun.data.adapters import describe; describe([]);"
        "print([m for m in ('grain', 'torch', 'h5py', 'google.protobuf') if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert printed.stdout == "[]\n"
