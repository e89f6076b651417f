"""ATen's operators as CIRH: a file a family, each with a table `EMITTERS` by ATen's names."""

from csrun.base.families import families_of
from csrun.pytorch.operators.base import Emission, Emitter

#: What writes an operator in CIRH, by its name in a recording.
EMITTERS: dict[str, Emitter] = {
    name: emitter
    for family in families_of("csrun.pytorch.operators", "EMITTERS")
    for name, emitter in family.EMITTERS.items()
}

__all__ = ["EMITTERS", "Emission", "Emitter"]
