"""Arguments of operators, flattened as PyTorch's pytrees are."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

from csrun.pytorch.record.arguments import leaves_of, map_arguments  # noqa: E402

GIVEN = [
    ((), {}),
    ((1, 2.0, None), {"dim": 3}),
    (([1, [2, 3]], (4, "five")), {"sizes": [6, 7]}),
    (({"a": 1, "b": [2]}, torch.Size([3, 4])), {"memory_format": torch.contiguous_format}),
]


@pytest.mark.parametrize(("args", "kwargs"), GIVEN)
def test_arguments_are_those_of_a_tree(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    assert leaves_of(args, kwargs) == tree_leaves((args, kwargs))
    assert map_arguments(str, args, kwargs) == tree_map(str, (args, kwargs))
