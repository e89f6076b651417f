"""Emitters of ATen operators in CIRH: a file per family, each with a table `EMITTERS`."""

from collections.abc import Mapping, Sequence
from functools import cache
from inspect import Signature, signature
from typing import Any

from csrun.base.families import families_of
from csrun.pytorch.operators.base import Emission, Emitter, Unsupported

#: Emitter of each operator, by its name in a recording.
EMITTERS: dict[str, Emitter] = {
    name: emitter
    for family in families_of("csrun.pytorch.operators", "EMITTERS")
    for name, emitter in family.EMITTERS.items()
}


def emit_operator(
    emission: Emission, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:
    """Emit an operator and return its results.

    Raises: Unsupported for an argument that the emitter does not take
    """
    emitter = EMITTERS[name]
    try:
        _signature(emitter).bind(emission, *arguments, **keywords)
    except TypeError as error:
        raise Unsupported(f"this form is not supported ({error}): leave the option out") from None
    return emitter(emission, *arguments, **keywords)


@cache
def _signature(emitter: Emitter) -> Signature:
    return signature(emitter)


__all__ = ["EMITTERS", "Emission", "Emitter", "emit_operator"]
