"""Late placement of operators: in the loop nest of their reader instead of the first possible
one.
"""

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from csrun.compiler.emit.llvm.loops.members import LoopNest, Member


def sink_stages(stages: Sequence[LoopNest]) -> dict[SSAValue, int]:
    """Return the stages of all operators; an operator with a single later reader gets the reader's
    stage.

    Its value then needs no memory. This is not done if more than one other value would need memory
    instead.
    """
    members = [member for stage in stages for member in stage.members]
    found = {member.value: member.stage for member in members}
    by_value = {member.value: member for member in members}
    for member in reversed(members):
        readers = _readers(member)
        reader = by_value.get(readers[0]) if len(readers) == 1 else None
        if reader is None or not _can_wait(member, reader):
            continue
        made = member.value.owner
        assert isinstance(made, Operation), "it is the result of an operator"
        others = {value for value in made.operands if found.get(value) == member.stage}
        if len(others) <= 1:
            found[member.value] = found[reader.value]
    return found


def _readers(member: Member) -> list[SSAValue]:
    """Return the values computed from it, each once; writes and views do not count."""
    operations = dict.fromkeys(use.operation for use in member.value.uses)
    return [operation.results[0] if operation.results else member.value for operation in operations]


def _can_wait(member: Member, reader: Member) -> bool:
    """Return whether it is read point by point."""
    return (
        member.is_pointwise
        and member.inner == reader.inner
        and all(access.parameter < 0 for access in member.out)
        and not member.classes
        and not reader.classes
    )
