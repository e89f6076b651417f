"""Chains without random access: elements compared with Python's lists."""

import logging
import threading
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csrun.data import AUTOTUNE, ArraySpec, DataError, Dataset
from csrun.data.formats import Lines


def numbers(count: int) -> Dataset:
    """Stream of the samples 0..count-1, made by a filter that keeps all."""
    return Dataset.from_arrays(np.arange(count)).filter(lambda x: True)


def values(dataset: Dataset) -> list[list[int]]:
    return [batch[0].tolist() for batch in dataset]


def flat(dataset: Dataset) -> list[int]:
    return list(chain.from_iterable(values(dataset)))


def groups(items: list[int], size: int) -> list[list[int]]:
    return [items[k : k + size] for k in range(0, len(items), size)]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_a_filter_keeps_what_holds(count: int) -> None:
    made = Dataset.from_arrays(np.arange(count)).filter(lambda x: x % 3 == 0).batch(7)
    assert not made.indexable
    assert made.cardinality is None
    assert values(made) == groups([k for k in range(count) if k % 3 == 0], 7)


def test_a_filter_of_batches() -> None:
    made = Dataset.from_arrays(np.arange(20)).batch(5).filter(lambda x: x.sum() > 20)
    assert values(made) == groups(list(range(5, 20)), 5)


def test_an_indexed_chain_keeps_its_order_before_a_filter() -> None:
    indexed = Dataset.from_arrays(np.arange(50)).shuffle(4).repeat(2)
    kept = [k for k in flat(indexed.batch(9)) if k % 2]
    assert flat(indexed.filter(lambda x: x % 2).batch(9)) == kept


def test_a_filter_over_endless_data() -> None:
    made = Dataset.from_arrays(np.arange(3)).repeat().filter(lambda x: x != 1).batch(2)
    assert [b[0].tolist() for b in islice(made, 3)] == [[0, 2], [0, 2], [0, 2]]


def test_a_window_shuffles_within_its_reach() -> None:
    window = 10
    made = numbers(200).shuffle(seed=3, window=window).batch(16)
    order = flat(made)
    assert sorted(order) == list(range(200))
    assert order != list(range(200))
    assert all(number < place + window for place, number in enumerate(order))
    assert flat(numbers(200).shuffle(seed=3, window=window).batch(16)) == order
    assert flat(numbers(200).shuffle(seed=4, window=window).batch(16)) != order


def test_a_window_of_one_leaves_the_order() -> None:
    assert flat(numbers(30).shuffle(window=1).batch(4)) == list(range(30))


def test_each_pass_is_shuffled_anew() -> None:
    made = numbers(64).shuffle(seed=1, window=64).repeat(2).batch(64)
    first, second = values(made)
    assert sorted(first) == sorted(second) == list(range(64))
    assert first != second


def test_passes_and_batches_of_a_stream() -> None:
    assert values(numbers(5).repeat(2).batch(4)) == [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4]]
    assert values(numbers(5).batch(4).repeat(2)) == [[0, 1, 2, 3], [4], [0, 1, 2, 3], [4]]
    assert values(numbers(10).batch(4, drop_remainder=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_an_empty_stream_repeated_without_end_ends() -> None:
    nothing = Dataset.from_arrays(np.arange(5)).filter(lambda x: False).repeat().batch(2)
    assert values(nothing) == []
    with pytest.raises(DataError, match="must not be empty"):
        nothing.element_spec()


def test_samples_and_batches_are_mapped() -> None:
    made = numbers(10).map(lambda x: (x, x * x)).batch(4).map(lambda x, y: (x + y,))
    assert flat(made) == [k + k * k for k in range(10)]


@pytest.mark.parametrize("calls", [2, 5, AUTOTUNE])
def test_parallel_calls_keep_the_order(calls: int) -> None:
    def slow(x: Any) -> Any:
        seen.add(threading.get_ident())
        barrier = len(seen)  # threads come and go: only the order is promised
        return x + 0 * barrier

    seen: set[int] = set()
    for source in (Dataset.from_arrays(np.arange(100)), numbers(100)):
        assert flat(source.batch(3).map(slow, num_parallel_calls=calls)) == list(range(100))
        assert flat(source.map(slow, num_parallel_calls=calls).batch(3)) == list(range(100))


def test_parallel_calls_run_side_by_side() -> None:
    together = threading.Barrier(3, timeout=60)  # broken unless three calls are in it at a time

    def meet(x: Any) -> Any:
        together.wait()
        return x

    for source in (Dataset.from_arrays(np.arange(12)), numbers(12)):
        assert flat(source.batch(2).map(meet, num_parallel_calls=3)) == list(range(12))


def test_a_map_without_parallel_calls_runs_alone_beside_one_with() -> None:
    inside: list[int] = []

    def alone(x: Any) -> Any:
        inside.append(1)
        assert len(inside) == 1
        inside.pop()
        return x

    made = Dataset.from_arrays(np.arange(400)).batch(2).map(lambda x: x, num_parallel_calls=4)
    assert flat(made.map(alone)) == list(range(400))


def test_a_cache_makes_each_element_once() -> None:
    for level in ("sample", "batch"):
        for source in (Dataset.from_arrays(np.arange(30)), numbers(30)):
            calls: list[int] = []

            def counted(x: Any, calls: list[int] = calls) -> Any:
                calls.append(1)
                return x * 2

            if level == "sample":
                made = source.map(counted).cache().repeat(3).batch(10)
            else:
                made = source.batch(10).map(counted).cache().repeat(3)
            assert flat(made) == [2 * k for k in range(30)] * 3
            assert len(calls) == (30 if level == "sample" else 3)


def test_a_cache_fixes_the_order_below_it() -> None:
    for source, window in ((Dataset.from_arrays(np.arange(40)), None), (numbers(40), 8)):
        order = flat(source.shuffle(5, window=window).cache().repeat(2).batch(8))
        assert order[:40] == order[40:]
        again = flat(source.cache().shuffle(5, window=window).repeat(2).batch(8))
        assert again[:40] != again[40:]


def test_what_is_cached_cannot_be_changed_in_place() -> None:
    def doubled(x: Any) -> Any:
        x *= 2
        return x

    for source in (Dataset.from_arrays(np.arange(4)), numbers(4)):
        with pytest.raises(ValueError, match="read-only"):
            list(source.batch(2).cache().map(doubled))


def test_a_function_that_works_in_place_does_not_reach_the_arrays() -> None:
    array = np.arange(6)

    def doubled(x: Any) -> Any:
        x *= 2
        return x

    assert flat(Dataset.from_arrays(array).batch(3).map(doubled)) == [0, 2, 4, 6, 8, 10]
    assert array.tolist() == list(range(6))


def ragged(count: int) -> Dataset:
    return Dataset.from_arrays(np.arange(count)).map(lambda n: (np.arange(n), n))


def test_padding_fills_samples_up() -> None:
    for source in (ragged(4), ragged(4).filter(lambda x, n: True)):
        made = source.batch(4, padded_shapes=((3,), None), padding_values=(-1, 0))
        ((x, n),) = list(made)
        assert x.tolist() == [[-1, -1, -1], [0, -1, -1], [0, 1, -1], [0, 1, 2]]
        assert n.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"array 0 of sample 1 has shape \(1,\), that of sample 0 \(0,\): pass padded_shapes"),
        ({"padded_shapes": ((2,), None)}, r"sample 3: must fit into padded_shapes' \(2,\), got sh"),
        ({"padded_shapes": ((None,), None)}, r"must be integers, as all.*got \(None,\)"),
        ({"padded_shapes": ((2,),)}, "must have one shape per array of a sample \\(2\\), got 1"),
        ({"padded_shapes": ((2,), None), "padding_values": (1, 2, 3)}, "one per shape of padded"),
    ],
)
def test_padding_that_does_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(ragged(4).batch(4, **options))


def test_a_look_at_a_stream_takes_nothing_away() -> None:
    made = numbers(10).shuffle(2, window=5).batch(4)
    assert made.element_spec() == (ArraySpec((4,), "int64"),)
    looked = flat(made)
    assert looked == flat(numbers(10).shuffle(2, window=5).batch(4))
    assert flat(made) == looked  # and it can be read again


def test_streamers_of_a_stream_replay_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "csrun"):
        made = numbers(40).batch(4)
        assert [b[0][0] for b in made.batches(1, 3)] == [4, 16, 28]
    assert "its chain has filter and cannot be indexed" in caplog.text
    assert "shard_files or shard" in caplog.text


def lines(folder: Path, *counts: int) -> str:
    for file, count in enumerate(counts):
        folder.joinpath(f"part-{file}.txt").write_text(
            "".join(f"{file}.{k}\n" for k in range(count))
        )
    return str(folder / "part-*.txt")


def words(dataset: Dataset, batch: int = 5) -> list[str]:
    as_number = dataset.map(lambda line: np.float64(decoded(line)))
    return [f"{value:.1f}" for (batch_,) in as_number.batch(batch) for value in batch_]


def decoded(line: Any) -> str:
    value = line.item() if line.ndim == 0 else bytes(line)
    return value.decode() if isinstance(value, bytes) else str(value)


def interleaved(counts: list[int], cycle: int, block: int) -> list[str]:
    """Elements by tf.data's definition of interleave: `block` of each of `cycle` files in turn."""
    waiting = [[f"{file}.{k}" for k in range(count)] for file, count in enumerate(counts)]
    opened = [waiting.pop(0) for _ in range(min(cycle, len(waiting)))]
    given: list[str] = []
    place = 0
    while opened:
        place %= len(opened)
        if opened[place]:
            given += opened[place][:block]
            opened[place] = opened[place][block:]
            place += 1
        elif waiting:
            opened[place] = waiting.pop(0)
        else:
            opened.pop(place)
    return given


@pytest.mark.parametrize(("cycle", "block"), [(1, 1), (2, 1), (3, 2), (2, 5), (9, 1)])
@pytest.mark.parametrize("calls", [None, 1, AUTOTUNE])
def test_files_are_interleaved(tmp_path: Path, cycle: int, block: int, calls: int | None) -> None:
    pattern = lines(tmp_path, 7, 3, 0, 9, 5)
    made = Dataset.from_files(pattern, Lines()).interleave(cycle, block, calls)
    assert words(made) == interleaved([7, 3, 0, 9, 5], cycle, block)
    assert not [t for t in threading.enumerate() if t.name.startswith("input")]


def test_an_exception_names_sample_and_file(tmp_path: Path) -> None:
    pattern = lines(tmp_path, 3, 4)

    def broken(line: Any) -> Any:
        if decoded(line) == "1.2":
            raise ZeroDivisionError
        return np.float64(decoded(line))

    made = Dataset.from_files(pattern, Lines()).map(broken).batch(2)
    with pytest.raises(ZeroDivisionError) as caught:
        list(made)
    (note,) = caught.value.__notes__
    assert "map broken (test_streams.py:" in note
    assert note.endswith(f"failed at sample 2 of {tmp_path}/part-1.txt")


@pytest.mark.parametrize("level", ["sample", "batch"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("calls", [None, 3])
def test_an_exception_names_the_sample(level: str, stream: bool, calls: int | None) -> None:
    def broken(x: Any) -> Any:
        if (np.asarray(x) == 37).any():
            raise ZeroDivisionError
        return x

    source = numbers(50) if stream else Dataset.from_arrays(np.arange(50)).shuffle(3)
    made = (
        source.map(broken, calls).batch(8)
        if level == "sample"
        else source.batch(8).map(broken, calls)
    )
    with pytest.raises(ZeroDivisionError) as caught:
        list(made)
    assert caught.value.__notes__[0].endswith("failed at sample 37")


def test_a_batch_that_fails_only_as_a_whole_is_named_by_its_samples() -> None:
    def broken(x: Any) -> Any:
        if len(x) == 8 and x[0] == 16:
            raise ZeroDivisionError
        return x

    with pytest.raises(ZeroDivisionError) as caught:
        list(Dataset.from_arrays(np.arange(50)).batch(8).map(broken))
    assert caught.value.__notes__[0].endswith("failed at sample 16 to sample 23")


def test_a_filter_that_fails_names_the_sample() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(Dataset.from_arrays(np.arange(9)).filter(lambda x: 1 // (5 - int(x))).batch(2))
    assert caught.value.__notes__[0].endswith("failed at sample 5")


def test_stages_are_timed() -> None:
    def added(x: Any) -> Any:
        return x + 1

    made = numbers(100).map(added).shuffle(window=10).batch(10).map(lambda x: x)
    list(made)
    source, kept, *stages = list(made.clock.stages)
    assert (source, stages[:-1]) == ("from_arrays", ["map added", "shuffle", "batch"])
    assert kept.startswith("filter lambda:")
    assert stages[-1].startswith("map lambda:")
    assert all(t.cpu_s >= 0 and t.wall_s > 0 for t in made.clock.stages.values())


def test_iterables_are_shuffled_mapped_and_repeated() -> None:
    batches = [(np.full(2, k),) for k in range(6)]
    made = Dataset.from_batches(batches).shuffle(1, window=3).map(lambda x: x + 1).repeat(2)
    assert sorted(flat(made)) == sorted([1, 2, 3, 4, 5, 6] * 4)


@pytest.mark.parametrize("whole", [False, True])
def test_an_exception_over_batches_that_came_whole_names_the_batch(whole: bool) -> None:
    def broken(x: Any) -> Any:
        if (x == 21).any() and (len(x) == 4 or not whole):
            raise ZeroDivisionError
        return x

    batches = [np.arange(4 * k, 4 * k + 4) for k in range(9)]
    with pytest.raises(ZeroDivisionError) as caught:
        list(Dataset.from_batches(batches).map(broken))
    assert caught.value.__notes__[0].endswith(
        "failed at batch 5" if whole else "failed at batch 5, row 1"
    )


def test_the_time_of_an_iterable_is_that_of_its_operator() -> None:
    made = Dataset.from_batches(generator())
    list(made)
    assert list(made.clock.stages) == [operator.stage for operator in made.operators]
    assert list(made.clock.stages) == ["from_batches generator"]


def test_what_every_streamer_makes_whole_is_known() -> None:
    assert numbers(9).batch(3).replayed
    assert not numbers(9).shard(1, 0).batch(3).replayed
    assert not Dataset.from_arrays(np.arange(9)).batch(3).replayed


def generator() -> Iterator[tuple[np.ndarray]]:
    return ((np.full(2, k),) for k in range(3))


def test_a_generator_gives_one_pass() -> None:
    with pytest.raises(DataError, match="generator has been read already"):
        list(Dataset.from_batches(generator()).repeat(2))
