"""filter: elements for which a function is true."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from csrun.data.errors import Origin, span_of
from csrun.data.flow import Chunks, Flow, Item, Source, as_stream
from csrun.data.input_operators import InputOperator, StageClock


def filtered(source: Source, predicate: Callable[..., Any], operator: InputOperator) -> Source:
    """Filter a source; the result is a stream, as the number of removed elements is unknown."""
    return FilterFlow(as_stream(source), predicate, operator)


@dataclass(frozen=True)
class FilterFlow:
    """Stream of the elements for which the predicate holds."""

    below: Flow
    predicate: Callable[..., Any]
    operator: InputOperator

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """Open a pass."""
        for chunk in self.below.open(epoch, clock):
            kept: list[Item] = []
            with clock.timed(self.operator.stage):
                origins: tuple[Origin, ...] = ()
                try:
                    for origins, element in chunk:
                        if self.predicate(*element):
                            kept.append((origins, element))
                except Exception as error:
                    error.add_note(self.operator.failed_at(span_of(origins)))
                    raise
            if kept:
                yield kept
