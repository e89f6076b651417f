"""Every public name of csrun.nn with wrong arguments: a one-line error at the caller, or none."""

import inspect
from typing import get_args

import numpy as np
import pytest

from csrun import nn
from csrun.base.errors import UsageError
from csrun.nn.tracer import Tracer

WRONG = ("ten", 2.5, -1, None, [], [1, 2], {"a": 1}, object(), np.zeros((2, 3)), b"x")
LAYERS = {
    "AveragePool": (2,),
    "BatchNorm": (),
    "Bias": (),
    "Conv2D": (4, 3),
    "Dense": (3,),
    "Dropout": (0.5,),
    "Embedding": (5, 4),
    "LayerNorm": (),
    "MaxPool": (2,),
    "MultiHeadAttention": (2,),
    "PositionEmbedding": (5,),
    "RMSNorm": (),
    "Sequential": (nn.relu,),
}
SCHEDULES = {kind.__name__: kind for kind in nn.schedules.SCHEDULES}
OPTIMIZERS = {kind.__name__: kind for kind in get_args(nn.Optimizer)}
FUNCTIONS = [
    name
    for name in nn.__all__
    if inspect.isfunction(getattr(nn, name)) and name not in ("scope", *LAYERS)
]
OF_MODULES = [
    f"{module}.{name}"
    for module, names in {
        "metrics": ("accuracy", "perplexity"),
        "summary": ("scalar", "histogram"),
        "initializers": ("normal",),
    }.items()
    for name in names
]


def named(name):
    found = nn
    for part in name.split("."):
        found = getattr(found, part)
    return found


def call(function, *arguments, **keywords):
    """Call on this file's line; return the error message, or None on success."""
    try:
        function(*arguments, **keywords)
    except UsageError as error:
        message = str(error)
        assert message.startswith(f"{__file__}:"), message
        assert len(message.splitlines()) <= 2, message
        return message
    return None


@pytest.fixture
def x():
    with Tracer() as tracer:
        yield tracer.input("x", (4, 6), "float32")


def mistakes(function, right):
    """Calls with one argument replaced, too many or too few arguments, or an unknown keyword."""
    yield (), {}
    yield (*right, *[object()] * 12), {}
    yield right, {"no_such_argument": 1}
    parameters = inspect.signature(function).parameters
    names = [name for name in parameters if name not in ("self", "args", "kwargs")]
    for value in WRONG:
        for place in range(len(right)):
            yield (*right[:place], value, *right[place + 1 :]), {}
        for name in names[len(right) :]:
            yield right, {name: value}


@pytest.mark.parametrize("name", [*FUNCTIONS, *OF_MODULES])
def test_a_function_called_wrongly(x, name):
    function = named(name)
    required = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.default is inspect.Parameter.empty
    ]
    for arguments, keywords in mistakes(function, (x,) * len(required)):
        call(function, *arguments, **keywords)
    assert "no_such_argument" in call(function, *[x] * len(required), no_such_argument=1)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_made_or_called_wrongly(x, name):
    kind, right = getattr(nn, name), LAYERS[name]
    for arguments, keywords in mistakes(kind.__init__, right):
        call(lambda a=arguments, k=keywords: kind(*a, **k)(x))
    for value in WRONG:
        assert call(kind(*right), value), f"{name}(...)({value!r})"
    assert "signature" in call(kind(*right), x, x, x)


@pytest.mark.parametrize("kind", [*SCHEDULES.values(), *OPTIMIZERS.values()])
def test_a_schedule_or_an_optimizer_made_wrongly(kind):
    fields = kind.__struct_fields__
    right = {"learning_rate": 0.1, "initial_learning_rate": 0.1, "steps": 5}
    right |= {"boundaries": [3], "values": [0.1, 0.2]}
    right = {name: value for name, value in right.items() if name in fields}
    assert "the arguments are" in call(kind)
    assert "the arguments are" in call(kind, *[0.1] * 20)
    assert "the arguments are" in call(kind, **right, no_such_argument=1)
    for name in fields:
        for value in WRONG:
            call(kind, **{**right, name: value})
        assert call(kind, **{**right, name: object()}), name


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: nn.Dense(3)(1), "nn.Dense(...): x must be a tensor of the model, got 1"),
        (lambda x: nn.Dense(3, use_bias="no"), "nn.Dense: use_bias must be True or False, got"),
        (lambda x: nn.Dense(3, name=5), "nn.Dense: name must be a string or None, got 5"),
        (
            lambda x: nn.reshape(x, "ab"),
            "nn.reshape: shape must be a list, each item an integer, got",
        ),
        (lambda x: nn.relu(), "nn.relu: missing a required argument: 'x'; signature: relu(x)"),
        (lambda x: nn.Sequential([nn.relu], "block"), "pass the name as name='block'"),
        (lambda x: nn.schedules.Cosine(), "the arguments are Cosine(initial_learning_rate, steps,"),
    ],
)
def test_the_message_says_what_to_write(x, wrong, message):
    with pytest.raises(UsageError) as caught:
        wrong(x)
    assert message in str(caught.value)


def test_a_bug_keeps_its_traceback(x, monkeypatch):
    monkeypatch.setattr("csrun.nn.activations.require_floats", lambda name, x: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        nn.relu(x)
    monkeypatch.setattr("csrun.nn.activations.require_floats", lambda name, x: x.no_such_thing)
    with pytest.raises(AttributeError, match="no_such_thing"):
        nn.relu(x)


def test_positional_arguments_are_in_the_order_of_keras():
    cosine = nn.schedules.Cosine
    assert cosine(3e-3, 1000, 1e-4) == cosine(
        initial_learning_rate=3e-3, steps=1000, end_learning_rate=1e-4
    )
    linear = nn.schedules.Linear
    assert linear(0.1, 10) == linear(initial_learning_rate=0.1, end_learning_rate=0, steps=10)
    pieces = nn.schedules.PiecewiseConstant
    assert pieces([5], [0.1, 0.2]).after(7) == 0.2


def test_an_array_is_called_an_array() -> None:
    """From Python 3.12 on NumPy's ArrayLike is an alias of a union of private protocols."""
    message = call(nn.metrics.perplexity, nn.Dense, [1])
    assert message is not None
    assert "loss must be an array of numbers, got <class" in message
    assert call(nn.metrics.perplexity, np.float32(2), [1, 2]) is None
