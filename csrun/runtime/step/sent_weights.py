"""Weights in the form sent to the wafer: in mixed precision 16-bit words, then float32 states."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import prod

import numpy as np

from csrun.base.half_formats import WORD
from csrun.executable import Executable, StepState, UpdateProgram, aligned, flat_views
from csrun.executable.arrays import Bytes
from csrun.executable.bind import BindWords
from csrun.executable.store_places import AnyStore, with_groups

BLOCK_BYTES = 1 << 20  # of a group that is sent: a multiple of what its checksum adds up


class SentWeights:
    """Bytes of each group's newest weights.

    In mixed precision the weights are narrowed each time they are sent, unless the store has words.
    Words are narrowed after each update, or by it. Other writers only write the weights, so the
    next program that runs narrows them once.

    narrowed: called with a group after `refresh` has narrowed it.
    """

    def __init__(
        self,
        executable: Executable,
        store: AnyStore,
        narrowed: Callable[[int], None] = lambda _: None,
    ) -> None:
        plan = executable.plan
        self._executable, self._half, self._narrowed = executable, plan.storage, narrowed
        views = flat_views(plan, store)
        groups = range(len(plan.groups))
        self._weights = [views[f"weights/{group}"] for group in groups]
        has_words = plan.store.words_offset is not None
        self._words = [views[f"words/{group}"] for group in groups] if has_words else []
        self._states: list[list[Bytes]] = [[] for _ in groups]
        for p, group in with_groups(plan) if self._half is not None else ():
            if p.is_state:
                start = p.offset_bytes - group.offset_bytes
                nbytes = aligned(prod(p.shape) * np.dtype(p.dtype).itemsize)
                weights = self._weights[group.index].view(np.uint8)
                self._states[group.index].append(weights[start : start + nbytes])
        self._narrowing: dict[int, Callable[[], None]] = {}
        self._narrowing_blocks: dict[tuple[int, int], Callable[[], None]] = {}
        self._new: set[int] = set()  # groups whose words match their weights

    def copy_of(self, group: int, slot: Bytes) -> Callable[[], None]:
        """Return the function that copies a group's bytes to its slot."""
        if self._half is None:
            return partial(np.copyto, slot, self._weights[group].view(np.uint8))
        weights, states = self._weights[group], self._states[group]
        words, sent_states = slot[: 2 * weights.size].view(WORD), slot[2 * weights.size :]
        narrow = None if self._words else self._bind(weights, words)

        def copy() -> None:
            if narrow is None:
                self.refresh(group)
                words[:] = self._words[group]
            else:
                narrow()
            _join(states, sent_states)

        return copy

    def blocks(self, group: int) -> Iterator[Bytes]:
        """Yield a group's bytes in blocks; in mixed precision each is valid until the next one."""
        weights = self._weights[group]
        if self._half is None:
            yield weights.view(np.uint8)
            return
        self.refresh(group)
        size, filled = BLOCK_BYTES // 2, 0
        for start in range(0, weights.size, size):
            filled = 2 * len(weights[start : start + size])
            if self._words:
                self._block[:filled] = self._words[group][start : start + size].view(np.uint8)
            else:
                self._narrow_block(group, start)
            if filled == BLOCK_BYTES:
                yield self._block
                filled = 0
        # States follow the last words: the receiver's checksum has no boundary between them.
        for state in self._states[group]:
            at = 0
            while at < len(state):
                part = state[at : at + BLOCK_BYTES - filled]
                self._block[filled : filled + len(part)] = part
                at, filled = at + len(part), filled + len(part)
                if filled == BLOCK_BYTES:
                    yield self._block
                    filled = 0
        if filled:
            yield self._block[:filled]

    def refresh(self, group: int) -> None:
        """Narrow a group's weights, if the store has words that do not match them."""
        if self._words and group not in self._new:
            self._narrow(group)
            self._new.add(group)
            self._narrowed(group)

    def refresh_all(self) -> None:
        """Narrow the weights of all groups, as `refresh`."""
        for group in range(len(self._weights)):
            self.refresh(group)

    def invalidate(self) -> None:
        """Mark the words as stale, since the weights may have been written."""
        self._new.clear()

    def after_updates(self, program: UpdateProgram) -> UpdateProgram:
        """Return the updates, each followed by the narrowing of its weights if the store has words
        that updates do not write.
        """
        if not self._words or self._executable.plan.store_in_arena:
            return program  # there, updates write the words

        def both(group: int, update: Callable[[StepState], None]) -> Callable[[StepState], None]:
            def run(step: StepState) -> None:
                update(step)
                self._narrow(group)

            return run

        return replace(program, update=[both(*each) for each in enumerate(program.update)])

    def _narrow(self, group: int) -> None:
        if group not in self._narrowing:
            self._narrowing[group] = self._bind(self._weights[group], self._words[group])
        self._narrowing[group]()

    def _narrow_block(self, group: int, start: int) -> None:
        """Narrow a group's weights from this one on into the block."""
        if (group, start) not in self._narrowing_blocks:
            weights = self._weights[group][start : start + BLOCK_BYTES // 2]
            words = self._block[: 2 * weights.size].view(WORD)
            self._narrowing_blocks[group, start] = self._bind(weights, words)
        self._narrowing_blocks[group, start]()

    @cached_property
    def _block(self) -> Bytes:
        return np.empty(BLOCK_BYTES, np.uint8)

    @cached_property
    def _bind(self) -> BindWords:
        return self._executable.words_binder()


def _join(parts: Sequence[Bytes], out: Bytes) -> None:
    """Write parts one after the other."""
    at = 0
    for part in parts:
        out[at : at + len(part)] = part
        at += len(part)
