"""Nested elements: structure is kept through every stage, arrays are sent flat."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from csrun.data import DataError, Dataset, as_dataset
from csrun.data.structure import Elements, flatten, names_of, paths, unflatten

IDS = np.arange(40, dtype=np.int32).reshape(8, 5)
MASK = IDS % 3 > 0
NEXT = np.arange(8, dtype=np.int32) % 2
FEATURES = {"ids": IDS, "mask": MASK}
LABELS = (IDS * 2, NEXT)


def as_lists(value: Any) -> Any:
    """Nested arrays as lists, for comparison."""
    if isinstance(value, dict):
        return {key: as_lists(part) for key, part in value.items()}
    return tuple(map(as_lists, value)) if isinstance(value, tuple) else np.asarray(value).tolist()


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (IDS, ["x"]),
        ((IDS, NEXT), ["x/0", "x/1"]),
        ({"b": IDS, "a": {"z": NEXT, "y": (MASK,)}}, ["x/a/y/0", "x/a/z", "x/b"]),
        ((1, 2), ["x/0", "x/1"]),
        ((np.float32(1), IDS), ["x/0", "x/1"]),
        ([1, 2], ["x"]),
        ([[1, 2], [3, 4]], ["x"]),
    ],
)
def test_a_value_comes_back_as_it_was(value: Any, names: list[str]) -> None:
    tree, leaves = flatten(value)
    assert paths(tree, "x") == names
    again = unflatten(tree, iter(leaves))
    kept = value if isinstance(value, dict | np.ndarray) or tree else np.asarray(value)
    assert as_lists(again) == as_lists(kept)


@pytest.mark.parametrize("pair", [lambda a: (a[0], a[1]), lambda a: (a, a[0])])
def test_a_tuple_nests_whatever_it_is_of(pair: Callable[[Any], Any]) -> None:
    data = Dataset.from_arrays(IDS, NEXT).map(lambda a, b: (pair(a), b)).batch(2)
    (first, second), labels = data.nested(next(iter(data)))
    assert first.shape[0] == second.shape[0] == labels.shape[0] == 2
    assert second.tolist() == [pair(IDS[row])[1] for row in (0, 1)]


def test_elements_that_are_flat_are_given_as_they_are_and_others_still_refused() -> None:
    """Flat elements, the usual case, skip the conversion."""
    given: list[Any] = [(IDS[0], NEXT[0]), (IDS[1], 1), (IDS[2], [4, 5]), (IDS[3], (1, 2))]
    elements = Elements()
    taken = [elements.taken(one) for one in given[:3]]
    assert [[part.tolist() for part in one] for one in taken] == [
        [IDS[0].tolist(), 0], [IDS[1].tolist(), 1], [IDS[2].tolist(), [4, 5]]
    ]  # fmt: skip
    assert all(type(part) is np.ndarray for one in taken for part in one)
    with pytest.raises(DataError, match="got no labels, labels/0, labels/1"):
        elements.taken(given[3])
    with pytest.raises(DataError, match="got no labels"):
        elements.taken((IDS[0],))


@pytest.mark.parametrize(
    ("chain", "first"),
    [
        (lambda data: data.batch(2), (0, 1)),
        (lambda data: data.map(lambda x, y: (x, y)).batch(2), (0, 1)),
        (lambda data: data.batch(2).map(lambda x, y: {"labels": y, "features": x}), (0, 1)),
        (lambda data: data.filter(lambda x, y: y[1] == 1).batch(2), (1, 3)),
        (lambda data: data.map(lambda x, y: (x, y)).cache().batch(2).prefetch(1), (0, 1)),
        (lambda data: data.shard(4, 2).batch(2), (2, 6)),
        (lambda data: data.batch(2).map(lambda x, y: (x, y), num_parallel_calls=2), (0, 1)),
    ],
)
def test_every_stage_gives_what_nests_as_it_did(
    chain: Callable[[Dataset], Dataset], first: tuple[int, int]
) -> None:
    data = chain(Dataset.from_arrays(FEATURES, LABELS))
    specs = data.element_spec()
    assert data.names(len(specs)) == ["features/ids", "features/mask", "labels/0", "labels/1"]
    assert [spec.shape for spec in specs] == [(2, 5), (2, 5), (2, 5), (2,)]
    rows = list(first)
    features, labels = data.nested(next(iter(data)))
    assert as_lists(features) == as_lists({"ids": IDS[rows], "mask": MASK[rows]})
    assert as_lists(labels) == as_lists((2 * IDS[rows], NEXT[rows]))


def test_a_map_gives_other_arrays_than_it_gets() -> None:
    def masked(features: Any, labels: Any) -> Any:
        return {"ids": np.where(features["mask"], features["ids"], -1)}, labels[1]

    data = Dataset.from_arrays(FEATURES, LABELS).batch(4).map(masked)
    assert len(data.element_spec()) == 2
    assert data.names(2) == ["features/ids", "labels"]
    (features, labels) = data.nested(next(iter(data)))
    assert (features["ids"] == np.where(MASK[:4], IDS[:4], -1)).all()
    assert (labels == NEXT[:4]).all()


def test_batches_of_a_torch_loader_nest_as_its_samples_do() -> None:
    data = pytest.importorskip("torch").utils.data
    samples = [({"ids": IDS[k], "mask": MASK[k]}, (IDS[k], NEXT[k])) for k in range(8)]
    loaded = as_dataset(data.DataLoader(samples, batch_size=4))
    names = loaded.names(len(loaded.element_spec()))
    assert names == ["features/ids", "features/mask", "labels/0", "labels/1"]
    features, labels = loaded.nested(next(iter(loaded)))
    assert (features["mask"] == MASK[:4]).all()
    assert (labels[1] == NEXT[:4]).all()


def test_a_batch_given_again_nests_as_it_did() -> None:
    data = Dataset.from_arrays(FEATURES, LABELS).batch(4)
    again = as_dataset([data.nested(next(data.batches()))])
    assert again.names(len(again.element_spec())) == data.names(4)


def test_a_dict_of_other_keys_is_features_alone() -> None:
    data = as_dataset([{"ids": IDS, "labels": NEXT}])
    assert data.names(len(data.element_spec())) == ["features/ids", "features/labels"]
    (features,) = data.nested(next(iter(data)))
    assert set(features) == {"ids", "labels"}


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([FEATURES, {"ids": IDS}], "features/ids, features/mask, got no features/mask"),
        ([(FEATURES, NEXT), (FEATURES, {"a": NEXT})], "labels, got no labels, labels/a"),
        ([{"features": IDS, "mask": MASK}], "may only have the further key labels, got mask"),
        ([{"features": {1: IDS}}], r"features: a key must be a string without '/', got 1"),
        ([{"features": {"a/b": IDS}}], r"features: a key must be a string without '/', got 'a/b'"),
        ([({"a": {}}, NEXT)], "features/a: a dict must not be empty"),
        ([({"a": ()}, NEXT)], "features/a: a tuple must not be empty"),
    ],
)
def test_elements_that_nest_otherwise_are_refused_by_their_keys(batches: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(as_dataset(batches))


def test_arrays_of_unequal_length_are_told_by_their_keys() -> None:
    with pytest.raises(DataError, match=r"equal lengths.*features/a \(8,\), features/b \(7,\)"):
        Dataset.from_arrays({"a": NEXT, "b": NEXT[:7]}, NEXT)


def test_further_parts_have_numbers() -> None:
    assert names_of([None, None, (None,)]) == ["features", "labels", "part 2/0"]
