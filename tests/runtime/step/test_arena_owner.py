"""Ownership of the arena: the program whose weights it holds."""

import pytest

from csrun.runtime.step.weights import ArenaOwner


class Recorded:
    """Weights that record their calls."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name, self.told = name, told

    def leave(self) -> None:
        self.told.append(f"{self.name} leaves")

    def resume(self) -> None:
        self.told.append(f"{self.name} resumes")


@pytest.mark.parametrize("ended", ["first", "second"])
def test_only_weights_in_the_arena_leave_it(ended: str) -> None:
    told: list[str] = []
    first, second = Recorded("first", told), Recorded("second", told)
    arena_owner = ArenaOwner()
    taken = [arena_owner.take(each) for each in (first, first, second)]  # type: ignore[arg-type]
    assert taken == [True, False, True]
    assert told == ["first resumes", "first leaves", "second resumes"]
    arena_owner.end(first if ended == "first" else second)  # type: ignore[arg-type]
    assert told[3:] == ([] if ended == "first" else ["second leaves"])
    assert arena_owner.take(second) == (ended == "second")  # type: ignore[arg-type]


def test_weights_that_were_written_are_loaded_again() -> None:
    told: list[str] = []
    weights, arena_owner = Recorded("first", told), ArenaOwner()
    arena_owner.forget()  # nothing has run
    arena_owner.take(weights)  # type: ignore[arg-type]
    arena_owner.forget()
    assert arena_owner.take(weights)  # type: ignore[arg-type]
    assert told == ["first resumes", "first leaves", "first resumes"]
