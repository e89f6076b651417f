"""Number of updates of each parameter, which counts the steps in which it had a gradient."""

from collections.abc import Callable, Collection, Iterable, Mapping


class UpdateCounts:
    """Update counts of an optimizer's parameters.

    A step without a parameter's gradient leaves its state and count as they are, as in PyTorch.
    Parameters that were updated in the same steps share a count. A count of all steps so far is the
    index of the step.

    changes: number of times that parameters have got another count, or a count was no longer that
        of all steps. steps: of the run.
    """

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._of: dict[str, int] = {}  # the number of each parameter's count
        self._of_trained: dict[frozenset[str], frozenset[int]] = {}
        self.changes = self.steps = 0

    def begin_at(self, updates: Mapping[str, int], steps: int) -> None:
        """Begin with loaded state. updates: of each parameter so far."""
        self._counts = sorted({*updates.values()})
        self._of = {name: self._counts.index(count) for name, count in updates.items()}
        self.changes, self.steps = self.changes + 1, steps
        self._of_trained.clear()

    def add(self, names: Iterable[str]) -> None:
        """Add parameters without updates so far."""
        self._of |= dict.fromkeys(names, len(self._counts))
        self._counts.append(0)
        self.changes += 1
        self._of_trained.clear()

    def split(self, trained: frozenset[str]) -> frozenset[int]:
        """Return the counts of these parameters, which no other parameter shares from now on."""
        found = self._of_trained.get(trained)
        if found is None:
            found = self._of_trained[trained] = frozenset(self._split(trained))
        return found

    def _split(self, trained: Collection[str]) -> Iterable[int]:
        inside = {self._of[name] for name in trained if name in self._of}
        for shared in {number for name, number in self._of.items() if name not in trained} & inside:
            others = [n for n, number in self._of.items() if number == shared and n not in trained]
            self._of |= dict.fromkeys(others, len(self._counts))
            self._counts.append(self._counts[shared])
            self.changes += 1
            self._of_trained.clear()
        return inside

    def will_split(self, trained: frozenset[str]) -> bool:
        """True if some of these parameters share a count with others."""
        others = {number for name, number in self._of.items() if name not in trained}
        return any(self._of.get(name) in others for name in trained)

    def count(self, trained: frozenset[str], before_change: Callable[[], None]) -> None:
        """Count a step that updates these parameters.

        before_change: called if the step is the first one that skips others, whose updates then
            have another form.
        """
        found = self.split(trained)
        if len(found) < len(self._counts) and self._are_first_skipped(found):
            before_change()
            self.changes += 1
        for number in found:
            self._counts[number] += 1
        self.steps += 1

    def _are_first_skipped(self, found: frozenset[int]) -> bool:
        """True if a count that is not among these is that of all steps so far."""
        return any(n not in found and each == self.steps for n, each in enumerate(self._counts))

    def lagging(self, name: str) -> int | None:
        """Return the number of a parameter's count; None if it is that of all steps so far."""
        number = self._of[name]
        return None if self._counts[number] == self.steps else number

    def value(self, number: int) -> int:
        """Return a count."""
        return self._counts[number]

    def skipped_by(self, name: str) -> int:
        """Return the number of steps so far that have not updated a parameter."""
        return self.steps - (self._counts[self._of[name]] if name in self._of else 0)
