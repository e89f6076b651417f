"""Emitters of ATen operators in CIRH: a file per family, each with a table `EMITTERS`."""

from collections.abc import Mapping, Sequence
from functools import cache
from inspect import Signature, signature
from typing import Any

from csrun.base.families import families_of
from csrun.pytorch.operators.base import Emission, Emitter, Unsupported
from csrun.pytorch.operators.complex_numbers import complex_emitters, is_complex, real_kinds
from csrun.pytorch.operators.promotion import PROMOTING, in_widest_type

#: Emitter of each operator, by its name in a recording.
EMITTERS: dict[str, Emitter] = {
    name: emitter
    for family in families_of("csrun.pytorch.operators", "EMITTERS")
    for name, emitter in family.EMITTERS.items()
}
#: Emitters of operators with complex operands or results.
_COMPLEX = complex_emitters(EMITTERS)
#: Names of all operators with an emitter.
EMITTED = EMITTERS.keys() | _COMPLEX.keys()


def emit_operator(
    emission: Emission, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:
    """Emit an operator and return its results.

    Raises: Unsupported for an argument that the emitter does not take
    """
    of_complex = is_complex(emission, arguments)
    emitter = (_COMPLEX if of_complex else EMITTERS).get(name)
    if emitter is None:
        raise Unsupported(
            "it is not supported for complex numbers: use real and imaginary part as two tensors"
        )
    try:
        _signature(emitter).bind(emission, *arguments, **keywords)
    except TypeError as error:
        raise Unsupported(f"this form is not supported ({error}): leave the option out") from None
    if name in PROMOTING:
        arguments = in_widest_type(emission, arguments)
    with real_kinds(emission):
        return emitter(emission, *arguments, **keywords)


@cache
def _signature(emitter: Emitter) -> Signature:
    return signature(emitter)


__all__ = ["EMITTED", "EMITTERS", "Emission", "Emitter", "emit_operator"]
