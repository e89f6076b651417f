"""Data sets: elements of a chain, whichever streamer reads them and from whichever position."""

import logging
import re
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from csrun.base.errors import UsageError
from csrun.data import ArraySpec, Batch, DataError, Dataset, as_dataset

SAMPLES = 103


def samples() -> tuple[np.ndarray, np.ndarray]:
    features = np.arange(SAMPLES * 4, dtype=np.float32).reshape(SAMPLES, 2, 2)
    return features, np.arange(SAMPLES, dtype=np.int16)


def dataset() -> Dataset:
    return Dataset.from_arrays(*samples())


def labels(batches: Iterator[Batch], count: int) -> list[list[int]]:
    return [batch[-1].tolist() for batch in islice(batches, count)]


CHAINS: dict[str, Callable[[], Dataset]] = {
    "shuffle-repeat-batch": lambda: dataset().shuffle(3).repeat().batch(16),
    "shuffle-batch-repeat": lambda: dataset().shuffle(3).batch(16).repeat(),
    "batch-shuffle-repeat": lambda: dataset().batch(10).shuffle(5).repeat(4),
    "drop-remainder": lambda: dataset().shuffle(1).batch(16, drop_remainder=True).repeat(5),
    "sample-map": lambda: dataset().map(lambda x, y: (x + y, y)).repeat().batch(7),
    "batch-map": lambda: dataset().batch(7).map(lambda x, y: (x * 2, y)).repeat(),
    "prefetch": lambda: dataset().shuffle(2).repeat().batch(9).prefetch(3),
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("streamers", [1, 2, 5])
@pytest.mark.parametrize("start", [0, 13])
def test_streamers_in_turn_give_the_serial_order(
    chain: Callable[[], Dataset], streamers: int, start: int
) -> None:
    serial = chain().batches(0, 1)
    expected = [next(serial) for _ in range(start + 12)][start:]
    readers = [chain().batches(start + i, streamers) for i in range(streamers)]
    for k, batch in enumerate(expected):
        got = next(readers[k % streamers])
        assert all(np.array_equal(a, b) for a, b in zip(got, batch, strict=True))


@pytest.mark.parametrize(
    "chain",
    [
        lambda: dataset().shuffle(3).repeat().batch(16),
        lambda: dataset().batch(12, drop_remainder=True).shuffle(5).repeat(),
        lambda: dataset().batch(8, drop_remainder=True).repeat(3).map(lambda x, y: (x + 1, y)),
        lambda: dataset().shuffle(1).batch(8, drop_remainder=True).cache().repeat(),
        lambda: dataset().map(lambda x, y: (x + y, y)).batch(12, drop_remainder=True).prefetch(2),
    ],
)
@pytest.mark.parametrize("parts", [2, 4])
def test_the_parts_of_a_batch_follow_each_other(chain: Callable[[], Dataset], parts: int) -> None:
    whole = list(islice(chain().batches(3, 2), 9))
    split = chain().in_parts(parts)
    assert split is not None
    readers = [split.batches(3 * parts + part, 2 * parts) for part in range(parts)]
    for batch in whole:
        pieces = [next(reader) for reader in readers]
        assert {len(piece[1]) for piece in pieces} == {len(batch[1]) // parts}
        for array, *of_array in zip(batch, *pieces, strict=True):
            np.testing.assert_array_equal(np.concatenate(of_array), array)
    if len(whole) < 9:
        assert all(next(reader, None) is None for reader in readers)
    assert split.element_spec()[0].shape[0] == len(whole[0][1]) // parts


@pytest.mark.parametrize(
    "chain",
    [
        lambda: dataset().batch(16),  # the last batch has 7 samples
        lambda: dataset().batch(15, drop_remainder=True),
        lambda: dataset().repeat().batch(16).filter(lambda x, y: True),
        lambda: Dataset.from_batches([(np.zeros((8, 3)), np.zeros(8))] * 4),
    ],
)
def test_other_batches_are_made_as_a_whole(chain: Callable[[], Dataset]) -> None:
    assert chain().in_parts(2) is None


def large(size: int = 2000) -> Dataset:
    return Dataset.from_arrays(np.zeros((3000, 5), np.float32)).shuffle(1).batch(size)


@pytest.mark.parametrize(
    ("made", "nbytes"),
    [
        (lambda: large(), 2000 * 5 * 4),
        (lambda: large(4000), 3000 * 5 * 4),
        (lambda: large().map(lambda x: x[:, :2].astype(np.float64)), 2000 * 2 * 8),
        (lambda: large().map(lambda x: x.sum(0, keepdims=True)), None),
        (lambda: large().map(lambda x: x.reshape(2000, 5)), None),
        (lambda: large(100).map(lambda x: x), None),
        (lambda: large(100), 100 * 5 * 4),
        (lambda: Dataset.from_batches(list(large())), None),
        (lambda: large().filter(lambda x: True), None),
    ],
    ids=["plain", "remainder", "map", "sum", "reshape", "few-mapped", "few", "iterable", "stream"],
)
def test_a_batchs_bytes_are_estimated_where_few_samples_make_one(
    made: Callable[[], Dataset], nbytes: int | None
) -> None:
    assert made().estimated_batch_bytes() == nbytes


def test_an_estimate_leaves_nothing_in_a_cache() -> None:
    data = large().map(lambda x: x + 1).cache()
    assert data.estimated_batch_bytes() == 2000 * 5 * 4
    assert data.element_spec() == (ArraySpec((2000, 5), "float32"),)


def test_batches_cross_the_border_of_two_passes() -> None:
    small = Dataset.from_arrays(np.arange(5)).repeat(2).batch(4)
    assert labels(small.batches(), 9) == [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4]]


@pytest.mark.parametrize("data", [samples(), samples()[0], {"features": samples()[0]}])
def test_data_that_nobody_batched_is_told_what_makes_batches(data: Any) -> None:
    with pytest.raises(
        DataError, match=r"unbatched data of type .*: return Dataset\.from_arrays\("
    ):
        as_dataset(data)


@pytest.mark.parametrize("data", [None, 5, "abc", Dataset, samples])
def test_what_is_no_iterable_of_batches_is_refused(data: Any) -> None:
    with pytest.raises(DataError, match=r"must return a csrun\.data\.Dataset or an iterable"):
        as_dataset(data)


@pytest.mark.parametrize("values", [np.array(["a"] * 4), np.zeros(4, "M8[s]"), np.zeros(4, "S3")])
def test_arrays_that_hold_no_numbers_are_refused(values: np.ndarray) -> None:
    with pytest.raises(
        DataError, match=rf"labels of .* hold numbers, got {re.escape(values.dtype.name)}"
    ):
        Dataset.from_arrays(np.zeros(4), values).batch(2).element_spec()


def test_objects_are_no_arrays() -> None:
    mapped = dataset().batch(2).map(lambda x, y: (x, np.array([None, "a"])))
    with pytest.raises(DataError, match="must consist of numeric arrays, got NoneType"):
        list(mapped)


def test_repeat_after_batch_keeps_passes_apart() -> None:
    small = Dataset.from_arrays(np.arange(5)).batch(4).repeat(2)
    assert labels(small.batches(), 9) == [[0, 1, 2, 3], [4], [0, 1, 2, 3], [4]]


def test_repeat_after_batch_shuffles_anew_each_pass() -> None:
    passes = labels(dataset().shuffle(1).batch(SAMPLES).repeat(2).batches(), 2)
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(SAMPLES))
    assert passes[0] != passes[1]


def test_features_stay_with_their_labels() -> None:
    features, _ = samples()
    for x, y in dataset().shuffle(11).batch(10):
        assert np.array_equal(x, features[y])


def test_dtypes_pass_through() -> None:
    spec = dataset().batch(16).element_spec()
    assert spec == (ArraySpec((16, 2, 2), "float32"), ArraySpec((16,), "int16"))


@pytest.mark.parametrize(
    ("batch", "drop", "expected"), [(16, False, 7), (16, True, 6), (103, True, 1), (200, False, 1)]
)
def test_cardinality(batch: int, drop: bool, expected: int) -> None:
    made = dataset().batch(batch, drop)
    assert made.cardinality == expected == len(list(made))
    assert made.repeat().cardinality is None


def test_reading_past_the_end_gives_nothing() -> None:
    assert list(dataset().batch(50).batches(3, 1)) == []


def test_sample_map_and_batch_map_agree() -> None:
    one = dataset().map(lambda x, y: (x.ravel() / 2, y)).batch(8)
    many = dataset().batch(8).map(lambda x, y: (x.reshape(len(x), -1) / 2, y))
    for a, b in zip(one, many, strict=True):
        assert np.array_equal(a[0], b[0])
        assert np.array_equal(a[1], b[1])


def test_memory_mapped_arrays_are_not_read_as_a_whole(tmp_path: Any) -> None:
    path = tmp_path / "huge.npy"
    huge = np.lib.format.open_memmap(path, "w+", np.uint8, (1 << 20, 1 << 20))  # 1 TiB, sparse
    huge[12345] = 7
    (batch,) = next(Dataset.from_arrays(huge).batch(2).batches(6172))
    assert batch[1, 0] == 7
    assert batch[0, 0] == 0


def test_prefetch_loads_ahead_no_further_than_asked() -> None:
    read: list[int] = []
    made = dataset().batch(1).map(lambda x, y: (read.append(int(y[0])), x, y)[1:]).prefetch(3)
    batches = made.batches()
    next(batches)
    batches.close()  # type: ignore[attr-defined]  # waits for the thread
    assert len(read) <= 4


def test_prefetch_ends_its_thread() -> None:
    before = set(threading.enumerate())  # of which another test's may end
    batches = dataset().repeat().batch(4).prefetch(2).batches()
    next(batches)
    assert len({*threading.enumerate()} - before) == 1
    batches.close()  # type: ignore[attr-defined]
    assert not {*threading.enumerate()} - before


def test_prefetch_hands_on_an_exception_with_its_traceback() -> None:
    def broken(x: np.ndarray, y: np.ndarray) -> Batch:
        if y[0] == 20:
            raise ZeroDivisionError("in the user's map")
        return x, y

    batches = dataset().batch(10).map(broken).prefetch(4).batches()
    assert labels(batches, 2) == [list(range(10)), list(range(10, 20))]
    with pytest.raises(ZeroDivisionError) as caught:
        next(batches)
    assert "broken" in [entry.name for entry in caught.traceback]


def test_arrays_that_are_no_data_set_are_a_users_mistake_with_its_line() -> None:
    with pytest.raises(UsageError, match=r"^test_dataset\.py:\d+: from_arrays: .*equal lengths"):
        Dataset.from_arrays(np.zeros(3), np.zeros(4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dataset.from_arrays(), "at least one array"),
        (lambda: Dataset.from_arrays(np.zeros((0, 3))), "must not be empty"),
        (
            lambda: Dataset.from_arrays(np.zeros(3), np.zeros(4)),
            r"equal lengths.*features \(3,\), labels \(4,",
        ),
        (lambda: Dataset.from_arrays(np.float32(1)), "first axis"),
        (lambda: dataset().batch(0), "batch_size must be positive, got 0"),
        (lambda: dataset().batch(2).batch(2), "batch must be called once"),
        (lambda: dataset().repeat(0), "count must be positive, got 0"),
        (lambda: dataset().shard(2, 2), r"index must be in 0\.\.1, got 2"),
        (lambda: dataset().repeat().shuffle(), "shuffle before repeat"),
        (lambda: dataset().repeat().shuffle(window=9), "shuffle before repeat"),
        (lambda: dataset().shuffle(3, window=9), r"is for streams, .*: use shuffle\(seed=3\)"),
        (lambda: dataset().shuffle(-1), "seed must be"),
        (lambda: dataset().batch(1).prefetch(0), "must be positive"),
        (lambda: dataset().batches(), r"call \.batch\(batch_size\)"),
        (
            lambda: dataset().batch(200, True).batches(),
            "103 of 103 samples do not fill a batch of 200",
        ),
        (lambda: as_dataset(5), "csrun.data.Dataset or an iterable of batches, got int"),
        (lambda: as_dataset([]).element_spec(), "must not be empty"),
        (lambda: as_dataset([{"x": 1}]).element_spec(), r"got shapes features/x \(\)"),
        (lambda: as_dataset([(np.zeros(6), np.int8(1))]).element_spec(), "as batch.. returns them"),
        (
            lambda: as_dataset([(np.zeros(6), np.zeros(5))]).element_spec(),
            r"features \(6,\), labels \(5,",
        ),
        (lambda: as_dataset([np.zeros(2)]).shuffle(), "a stream needs a window"),
    ],
)
def test_what_cannot_work_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()


def test_a_dataset_stays_itself() -> None:
    made = dataset().batch(2)
    assert as_dataset(made) is made
    assert made.indexable


def stream() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return ((np.full((2, 3), k), np.full(2, k)) for k in range(10))


def test_a_stream_is_read_in_turn_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    made = as_dataset(list(stream()))
    assert not made.indexable
    with caplog.at_level(logging.WARNING, "csrun"):
        assert labels(made.batches(1, 4), 9) == [[1, 1], [5, 5], [9, 9]]
        assert labels(made.batches(2, 4), 9) == [[2, 2], [6, 6]]
    assert len(caplog.records) == 1
    assert "does not scale" in caplog.text


def test_a_stream_read_as_a_whole_needs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert len(list(as_dataset(list(stream())))) == 10
    assert not caplog.records


def test_a_look_at_a_generator_takes_nothing_away() -> None:
    made = as_dataset(stream()).map(lambda x, y: (x.astype(np.float32), y))
    assert made.element_spec()[0] == ArraySpec((2, 3), "float32")
    assert len(list(made)) == 10
    with pytest.raises(DataError, match="generator has been read already"):
        list(made)


def test_torch_loaders_are_streams() -> None:
    torch = pytest.importorskip("torch")
    pairs = torch.utils.data.TensorDataset(torch.arange(10.0), torch.arange(10))
    made = as_dataset(torch.utils.data.DataLoader(pairs, batch_size=4))
    assert made.element_spec() == (ArraySpec((4,), "float32"), ArraySpec((4,), "int64"))
    assert labels(made.batches(), 9) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_look_at_a_loader_does_not_change_its_shuffle() -> None:
    torch = pytest.importorskip("torch")

    def order(look: bool) -> list[list[int]]:
        torch.manual_seed(4)
        made = as_dataset(torch.utils.data.DataLoader(torch.arange(10), 2, shuffle=True))
        if look:
            made.element_spec()
        return labels(made.batches(), 9)

    assert order(look=True) == order(look=False)
