"""Attributes of a torch DataLoader."""

from collections.abc import Iterator
from typing import Any

import pytest

from csrun.data import Dataset, as_dataset
from csrun.data.adapters import describe, indexed
from csrun.data.adapters.torch_batches import fetched, rows_at_once
from csrun.data.input_operators import Level

torch = pytest.importorskip("torch")
data = torch.utils.data


def pairs(count: int = 10) -> Any:
    return data.TensorDataset(torch.arange(float(count)), torch.arange(count))


def named(loader: Any) -> dict[str, dict[str, Any]]:
    return {op.name: dict(op.options) for op in describe(loader)}


def test_a_plain_loader_is_a_source_and_batches() -> None:
    told = named(data.DataLoader(pairs(), batch_size=4))
    assert list(told) == ["DataLoader", "batch"]
    assert told["batch"] == {"batch_size": 4, "drop_remainder": False}
    source = told["DataLoader"]
    assert source["samples"] == 10
    assert source["in_memory"] is True
    assert (source["shuffle"], source["drop_last"], source["num_workers"]) == (False, False, 0)


def test_shuffle_workers_and_functions_are_told() -> None:
    def collate(samples: list[Any]) -> Any:
        return data.default_collate(samples)

    loader = data.DataLoader(
        pairs(),
        batch_size=5,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        prefetch_factor=3,
        collate_fn=collate,
        generator=torch.Generator().manual_seed(7),
    )
    operators = describe(loader)
    assert [op.name for op in operators] == ["DataLoader", "shuffle", "batch", "map", "prefetch"]
    levels = [Level.SAMPLE] * 3 + [Level.BATCH] * 2
    assert [op.level for op in operators] == levels
    told = {op.name: dict(op.options) for op in operators}
    assert told["shuffle"] == {"kind": "whole", "seed": 7, "window": None}
    assert told["batch"] == {"batch_size": 5, "drop_remainder": True}
    assert told["map"]["function"] == "collate"
    assert told["prefetch"] == {"ahead": 6, "num_workers": 2, "prefetch_factor": 3}
    assert told["DataLoader"]["seeded"] is True


def test_samplers_of_other_kinds_are_named() -> None:
    weighted = data.WeightedRandomSampler([1.0] * 10, 10)
    told = named(data.DataLoader(pairs(), batch_size=2, sampler=weighted))
    assert told["shuffle"]["kind"] == "WeightedRandomSampler"
    batches = data.BatchSampler(data.RandomSampler(pairs()), batch_size=3, drop_last=True)
    told = named(data.DataLoader(pairs(), batch_sampler=batches))
    assert told["shuffle"]["kind"] == "whole"
    assert told["batch"] == {"batch_size": 3, "drop_remainder": True}


def test_an_order_that_nobody_can_know_is_not_guessed() -> None:
    told = named(data.DataLoader(pairs(4), batch_sampler=[[0, 3], [2, 1]]))
    assert told["DataLoader"]["shuffle"] is None
    assert told["shuffle"]["kind"] == "list"
    assert "batch" not in told


def test_an_iterable_data_set_keeps_its_order_to_itself() -> None:
    class Numbers(data.IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return iter(range(6))

        def __len__(self) -> int:
            raise AssertionError("must not be asked")

    class Loader(data.DataLoader):
        pass

    told = named(Loader(Numbers(), batch_size=2))
    assert list(told) == ["DataLoader", "batch"]
    assert told["DataLoader"]["dataset"] == "Numbers"
    assert told["DataLoader"]["samples"] is None
    assert told["DataLoader"]["shuffle"] is None
    assert list(named(Loader(Numbers(), batch_size=None))) == ["DataLoader"]


def test_a_data_set_of_it_has_its_operators_and_is_read_by_number() -> None:
    made = as_dataset(data.DataLoader(pairs(), batch_size=4))
    assert [op.name for op in made.operators] == ["DataLoader", "batch"]
    assert made.indexable
    assert made.cardinality == 3
    assert [labels.tolist() for _, labels in made] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [labels.tolist() for _, labels in made.batches(1, 2)] == [[4, 5, 6, 7]]


class Loader(data.DataLoader):
    def __iter__(self):
        return super().__iter__()


OWN = [
    Loader(pairs(), batch_size=4),
    data.DataLoader(pairs(), batch_size=4, num_workers=1),
    data.DataLoader(pairs(), batch_size=4, sampler=[3, 2, 1, 0]),
    data.DataLoader(pairs(), batch_sampler=[[3, 2], [1, 0]]),
    data.DataLoader(pairs(), shuffle=True, generator=torch.Generator()),
]


@pytest.mark.parametrize("loader", OWN)
def test_one_with_an_order_or_workers_of_its_own_is_read_in_turn(loader) -> None:
    assert indexed(loader) is None
    assert not as_dataset(loader).indexable


def test_a_batch_may_be_a_dict_of_features_and_labels() -> None:
    samples = [{"labels": k, "features": torch.full((2,), k)} for k in range(4)]
    made = Dataset.from_batches(data.DataLoader(samples, batch_size=2))
    first, second = made.batches()
    assert [array.tolist() for array in first] == [[[0, 0], [1, 1]], [0, 1]]
    assert [array.tolist() for array in second] == [[[2, 2], [3, 3]], [2, 3]]


def test_others_tell_nothing() -> None:
    assert describe([1, 2]) == ()
    assert describe(iter(())) == ()
    assert indexed([1, 2]) is None


def test_rows_of_a_tensor_dataset_are_those_that_collate_stacks() -> None:
    wide = torch.randn(7, 4, 3).transpose(1, 2)
    loader = data.DataLoader(data.TensorDataset(wide, torch.arange(7) > 2), batch_size=3)
    ours, theirs = rows_at_once(loader, [5, 0, 5]), fetched(loader, [5, 0, 5])
    assert ours is not None
    assert all(map(torch.equal, ours, theirs))
    strides = [[x.stride() for x in batch] for batch in (ours, theirs)]
    assert strides[0] == strides[1]


@pytest.mark.parametrize("indices", [[-1, 0], [True, 0], [torch.tensor(1)], []])
def test_other_indices_are_left_to_the_dataset(indices: Any) -> None:
    assert rows_at_once(data.DataLoader(pairs(), batch_size=2), indices) is None


def test_other_data_sets_are_asked_for_each_sample() -> None:
    class Doubled(data.TensorDataset):
        def __getitem__(self, index: int) -> Any:
            return tuple(2 * x for x in super().__getitem__(index))

    assert rows_at_once(data.DataLoader(Doubled(torch.ones(4)), batch_size=2), [0, 1]) is None
    collated = data.DataLoader(pairs(), batch_size=2, collate_fn=list)
    assert rows_at_once(collated, [0, 1]) is None
