"""Loops of updates: an optimizer's formulas over flat arrays, specialized for a run.

A step whose gradients are not scaled, or whose weights do not decay, uses a loop without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from csrun.base.half_formats import WORD, HalfFormat
from csrun.cirh.ops.learning import UNLIMITED, Clipping
from csrun.compiler.lair.flat import flat_loop
from csrun.compiler.lair.formula import Formula, Number, Values
from csrun.compiler.lair.loop import KernelLoop
from csrun.compiler.optimizers import Optimizer, PerTensor
from csrun.executable import StepNumber

CLIP, OWN_CLIP = "step.clip", "clip"  # factors of all gradients, and of one parameter's
DECAYS = "weight_decay"
_WORDS = {f"{CLIP} != 1": "clipped", f"{OWN_CLIP} != 1": "clipped", DECAYS: "decayed"}
WORDS = "words"  # the weights as the wafer reads them


@dataclass(frozen=True)
class Branch:
    """Loop for the steps in which all of its conditions hold, and no earlier branch's."""

    conditions: tuple[str, ...]
    loop: KernelLoop

    @property
    def name(self) -> str:
        """Return a name that is unique among the branches of an optimizer."""
        return "_".join(_WORDS[condition] for condition in self.conditions)


@dataclass(frozen=True)
class UpdateForm:
    """Types of the arrays of updates.

    dtype: of weights, slots and gradients.
    is_measured: a step may scale gradients by their global norm.
    clipping: limits of gradients.
    half: 16-bit format of words. Updates read gradients as words with `reads_words`, and write the
        weights also as words with `writes_words`.
    """

    dtype: str
    is_measured: bool = False
    clipping: Clipping = UNLIMITED
    half: HalfFormat | None = None
    reads_words: bool = False
    writes_words: bool = False

    def arrays(self, optimizer: Optimizer) -> dict[str, str]:
        """Return the flat regions of an optimizer's updates, with their types."""
        found = dict.fromkeys(("weights", "gradients", *optimizer.slots), self.dtype)
        if self.reads_words:
            found["gradients"] = WORD
        return {**found, WORDS: WORD} if self.writes_words else found

    def over(self, formula: Formula) -> Formula:
        """Wrap the formula so that it reads gradients, and writes weights, as words if needed."""
        half = self.half
        if half is None:
            return formula

        def update(old: Values) -> Values:
            if self.reads_words:
                old = {**old, "gradients": old["gradients"].widen(half)}
            found = formula(old)
            if not self.writes_words or "weights" not in found:  # the first loop of two
                return found
            return {**found, WORDS: found["weights"].narrow(half)}

        return update

    @property
    def narrowing(self) -> KernelLoop | None:
        """Return the loop that narrows weights to words, if updates do not write them."""
        half = self.half
        if half is None or self.writes_words:
            return None
        arrays = {"weights": self.dtype, WORDS: WORD}
        return flat_loop("narrowing", arrays, lambda old: {WORDS: old["weights"].narrow(half)})

    @property
    def clip(self) -> str | None:
        """Text of the factor that scales gradients."""
        if self.clipping.clip_each is not None:
            return OWN_CLIP
        return CLIP if self.is_measured else None

    def scaled(self, optimizer: Optimizer, is_clipped: bool) -> Formula:
        """Wrap the update so that gradients are scaled, and clipped by value."""
        most = self.clipping.clip_value
        scales: list[Number] = [self.clip] if is_clipped and self.clip else []
        signs: list[Number] = [-1.0] if optimizer.maximize else []
        if not scales and not signs and most is None:
            return optimizer.update

        def update(old: Values) -> Values:
            gradients = old["gradients"]
            for scale in scales:
                gradients = gradients * scale
            if most is not None:
                gradients = gradients.at_least(-most).at_most(most)
            for sign in signs:
                gradients = gradients * sign
            return optimizer.update({**old, "gradients": gradients})

        return update

    @property
    def squared(self) -> str:
        """Return the argument of the function that sums squares of gradients, for words."""
        half = self.half if self.reads_words else None
        return "" if half is None else f", ({half.mantissa_bits}, {half.bias})"


@dataclass(frozen=True)
class UpdateLoops:
    """Loops of an optimizer, for ranges of any length.

    arrays: flat regions that it uses, with their types.
    branches: from the one with most conditions to the one without; a step computes only what it
        needs.
    finish: loops of its second pass.
    """

    arrays: Mapping[str, str]
    branches: tuple[Branch, ...]
    finish: KernelLoop | None

    @classmethod
    def of(cls, optimizer: Optimizer, form: "UpdateForm") -> "UpdateLoops":
        """Return the loops over arrays of these types."""
        arrays = form.arrays(optimizer)
        stem = type(optimizer).__name__.lower()
        decays = (True, False) if isinstance(optimizer.weight_decay, StepNumber) else (None,)
        branches = []
        for clips, has_decay in product((True, False) if form.clip else (False,), decays):
            conditions = ([f"{form.clip} != 1"] if clips else []) + ([DECAYS] if has_decay else [])
            own = optimizer.without_decay() if has_decay is False else optimizer
            formula = form.scaled(own, clips)
            name = "/".join([stem, *(_WORDS[condition] for condition in conditions)])
            branches.append(Branch((*conditions,), flat_loop(name, arrays, form.over(formula))))
        finish = None
        if isinstance(optimizer, PerTensor):
            whole = {name: arrays[name] for name in arrays if name not in optimizer.slots}
            finish = flat_loop(f"{stem}/finish", whole, form.over(optimizer.finish))
        return cls(arrays, tuple(branches), finish)

    @property
    def all(self) -> list[KernelLoop]:
        """All loops."""
        finish = [] if self.finish is None else [self.finish]
        return [*(branch.loop for branch in self.branches), *finish]
