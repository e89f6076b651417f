"""Emitters of TensorFlow operators in CIRH: a file per family, each with a table `EMITTERS`."""

from csrun.base.families import families_of
from csrun.tensorflow.operators.base import Emitter, GraphEmission

#: Emitter of each operator, by its kind.
EMITTERS: dict[str, Emitter] = {
    name: emitter
    for family in families_of("csrun.tensorflow.operators", "EMITTERS")
    for name, emitter in family.EMITTERS.items()
}

__all__ = ["EMITTERS", "Emitter", "GraphEmission"]
