"""Plain values as structs: messages name the expected type, for every kind of value."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from csrun.base.errors import UsageError
from csrun.base.typed_yaml import WORDS, convert


class Circle(msgspec.Struct, frozen=True, tag_field="shape", tag="circle"):
    radius: Annotated[float, msgspec.Meta(gt=0)]


class Square(msgspec.Struct, frozen=True, tag_field="shape", tag="square"):
    side: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1

    def __post_init__(self) -> None:
        if self.side == 5:
            raise ValueError("side is never 5")


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Inner(msgspec.Struct, frozen=True):
    flag: bool = False


class Outer(msgspec.Struct, frozen=True):
    count: Annotated[int, msgspec.Meta(ge=1)] | None = None
    size: float | Circle | Square = 1
    kind: Literal["fast", "slow"] | None = None
    colour: Colour = Colour.RED
    names: tuple[str, ...] = ()
    pair: tuple[int, str] = (1, "a")
    weights: dict[str, float] = {}
    inners: dict[str, Inner] = {}
    shapes: list[Circle | Square] = []
    noted: Annotated[int, msgspec.Meta(description="a note", extra_json_schema={"x": 1})] = 1
    data: bytes = b""
    limit: (
        Annotated[int, msgspec.Meta(ge=1, extra={WORDS: "a number of bytes"})]
        | Annotated[str, msgspec.Meta(pattern="^[0-9]+GB$", extra={WORDS: "a size such as 8GB"})]
        | None
    ) = None
    only: Circle | None = None


FILE = Path("some.yaml")


def test_values_become_structs() -> None:
    raw = {
        "size": {"shape": "circle", "radius": 2},
        "kind": "slow",
        "colour": "green",
        "inners": {"anything": {"flag": True}},
        "shapes": [{"shape": "square"}],
        "only": {"shape": "circle", "radius": 1},
        "count": None,
    }
    assert convert(raw, Outer, FILE) == Outer(
        size=Circle(2),
        kind="slow",
        colour=Colour.GREEN,
        inners={"anything": Inner(flag=True)},
        shapes=[Square()],
        only=Circle(1),
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"count": "many"}, "count: must be a whole number >= 1, got 'many'"),
        ({"count": 0}, "count: must be a whole number >= 1, got 0"),
        ({"size": "big"}, "size: must be a number or a mapping with the key shape, got 'big'"),
        ({"size": {"shape": "circle", "radius": 0}}, "size.radius: must be a number > 0, got 0"),
        ({"size": {"shape": "square", "side": 5}}, "size: side is never 5"),
        ({"kind": "fsat"}, "kind: must be one of fast, slow, got 'fsat'; did you mean fast?"),
        ({"kind": 3}, "kind: must be one of fast, slow, got 3"),
        ({"colour": "gren"}, "colour: must be one of red, green, got 'gren'; did you mean green?"),
        ({"colour": None}, "colour: must be one of red, green, got nothing"),
        ({"names": "a"}, "names: must be a list, each item text, got 'a'"),
        ({"names": [1]}, "names[0]: must be text, got 1"),
        ({"pair": [1, 2]}, "pair[1]: must be text, got 2"),
        ({"pair": [1]}, "pair: must be a list of a whole number, text, got [1]"),
        ({"weights": {"a": "x"}}, "weights: must be a mapping of text to a number, got {'a': 'x'}"),
        ({"weights": {1: 1}}, "weights: must be a mapping of text to a number, got {1: 1}"),
        ({"inners": {"a": {"flat": 1}}}, "inners.a.flat: unknown key; did you mean flag?"),
        ({"inners": {"a": 3}}, "inners: must be a mapping of text to a mapping, got {'a': 3}"),
        (
            {"shapes": [{"shape": "sqare"}]},
            "shapes[0].shape: must be one of circle, square, got 'sqare'; did you mean square?",
        ),
        ({"shapes": [{}]}, "shapes[0]: missing required field shape, one of circle, square"),
        ({"size": {"shape": "circle"}}, "size: missing required field radius"),
        ({"noted": "a"}, "noted: must be a whole number, got 'a'"),
        ({"limit": "8 gb"}, "limit: must be a number of bytes or a size such as 8GB, got '8 gb'"),
        ({"limit": 0}, "limit: must be a number of bytes or a size such as 8GB, got 0"),
        ({"data": 1}, "data: must be of type bytes, got 1"),
        (3, "must be a mapping, got 3"),
        ({"xxx": 1}, "xxx: unknown key; known: count, size, kind, colour, names, "),
    ],
)
def test_what_is_wanted_is_said_in_words(raw: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        convert(raw, Outer, FILE)
    assert str(caught.value).startswith(f"some.yaml: {message}")


@pytest.mark.parametrize(
    ("raw", "where", "got"),
    [
        ({"size": float("inf")}, "size", "inf"),
        ({"weights": {"a": 1.0, "b": float("nan")}}, "weights.b", "nan"),
        ({"shapes": [{"shape": "circle", "radius": -float("inf")}]}, "shapes[0].radius", "-inf"),
    ],
)
def test_numbers_are_finite(raw: Any, where: str, got: str) -> None:
    with pytest.raises(UsageError) as caught:
        convert(raw, Outer, FILE)
    assert str(caught.value) == f"{FILE}: {where}: must be a finite number, got {got}"
