"""Lines of a program that record values: `record(step, 12, fc_0_mm)` after the kernel of value 12.

Inputs and weights are recorded before the first kernel that reads them.
"""

from collections.abc import Mapping

from csrun.compiler.graph.kernel import Kernel, Name
from csrun.compiler.written_values import WrittenValue, read_values
from csrun.executable import RecordedValue

RECORD = "record = runtime.record"


class RecordingCode:
    """Recording lines, and the values that they record; written: by the id of a kernel."""

    def __init__(self, written: Mapping[int, tuple[WrittenValue, ...]]) -> None:
        self._written = written
        self._read: set[str] = set()
        self._values: list[RecordedValue] = []

    @property
    def values(self) -> tuple[RecordedValue, ...]:
        """Recorded values, by number."""
        return tuple(self._values)

    def before(self, kernel: Kernel, name: Name) -> list[str]:
        """Return the lines before a kernel's."""
        lines = []
        for each in read_values(kernel):
            if each.array.name not in self._read:
                self._read.add(each.array.name)
                lines.append(self._line(each, name))
        return lines

    def after(self, kernel: Kernel, name: Name) -> list[str]:
        """Return the lines after a kernel's."""
        return [self._line(each, name) for each in self._written.get(id(kernel), ())]

    def _line(self, each: WrittenValue, name: Name) -> str:
        self._values.append(each.value)
        return f"record(step, {len(self._values) - 1}, {name(each.array)})"
