"""Relay of a SwarmX task: a node of the tree between MemoryX above and the wafers below.

All wafers run the same program, and so send MemoryX the same requests in the same order. A relay
receives each request from all of its children and forwards one: gradients and losses as sums, in
the order of the children regardless of arrival. Replies are broadcast to all children.
"""

import queue
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter_ns

import numpy as np

from csrun.executable.arrays import Array
from csrun.runtime.cpus import thread_count
from csrun.runtime.remote.blocks import GradientsOut, receive_gradients
from csrun.runtime.remote.store import NUMBER, ORDER, StoreRequest
from csrun.runtime.step.call_threads import CallThreads, add_in_place
from csrun.runtime.step.trace import SpanKind, SpanRecorder
from csrun.runtime.wire.shared import Counter
from csrun.runtime.wire.tcp import SUM, raw, receive_few, receive_into, summed

PART_BYTES = 1 << 20  # buffers of weights: one is sent to the children while the next one arrives


class Relay:
    """Relay between one MemoryX task and the children, with its own threads.

    children: their connections by name, in the order of summation.
    recorder: receives the time of each sum, from the first gradients to the result.
    failed: raised when `error` is set. A closed connection ends the relay without an error, since
        the chief has a channel to each peer and notices the loss.
    """

    def __init__(
        self,
        parent: socket.socket,
        children: Mapping[str, socket.socket],
        precision: str,
        recorder: SpanRecorder,
        failed: Counter,
    ) -> None:
        self._parent, self._children = parent, children
        self._precision = precision
        self.recorder, self._failed = recorder, failed
        self.error: Exception | None = None
        self._summed = GradientsOut(parent)
        self._sums = CallThreads(thread_count())
        self._answers: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # sizes in bytes
        self._places = [np.empty(0, precision) for _ in range(2)]
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)
            for name, work in (("to memoryx", self._send_up), ("from memoryx", self._send_down))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop the threads; the owner closes the connections."""
        # shutdown wakes threads that wait in recv; close alone would not.
        for connection in (self._parent, *self._children.values()):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._answers.put(None)
        for thread in self._threads:
            thread.join()
        self._sums.close()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError:
            return
        except Exception as error:
            self.error = error
            self._failed.raise_by()

    def _send_up(self) -> None:
        while True:
            head = self._same(self._words(ORDER))
            order, group, step, nbytes = ORDER.unpack(head)
            match StoreRequest(order):
                case StoreRequest.GRADIENTS:
                    began_ns = perf_counter_ns() if self.recorder.at(step) else None
                    gradients = self._sum(nbytes)
                    if began_ns is not None:
                        self.recorder.add(SpanKind.GRADIENTS, group, began_ns)
                    self._parent.sendall(summed(head))
                    self._summed.send(group, gradients)
                case StoreRequest.LOSS:
                    loss = sum(NUMBER.unpack(number)[0] for number in self._words(NUMBER))
                    self._parent.sendall(summed(head) + summed(NUMBER.pack(loss)))
                    self._answers.put(nbytes)
                case StoreRequest.TOTAL:
                    total = self._same(self._words(NUMBER))
                    self._parent.sendall(summed(head) + summed(total))
                case StoreRequest.TURN:
                    self._parent.sendall(summed(head))
                case _:  # a request that is forwarded, and has a reply
                    self._parent.sendall(summed(head))
                    self._answers.put(nbytes)

    def _words(self, kind: struct.Struct) -> list[bytes]:
        children = self._children.items()
        return [receive_few(child, kind.size, f"orders from {name}") for name, child in children]

    def _sum(self, nbytes: int) -> Array:
        """Add the gradients of all children, in place of the first one's."""
        whole, part = self._room(nbytes)
        (first, connection), *others = self._children.items()
        receive_gradients(connection, whole, first)
        for name, child in others:
            receive_gradients(child, part, name)
            # In the order of the children, so that the sum does not depend on the order of arrival.
            with np.errstate(all="ignore"):  # their norm shows non-finite values
                add_in_place(whole, part, self._sums)
        return whole

    def _room(self, nbytes: int) -> list[Array]:
        count = nbytes // np.dtype(self._precision).itemsize
        if count > len(self._places[0]):
            self._places = [np.empty(count, self._precision) for _ in self._places]
        return [place[:count] for place in self._places]

    def _send_down(self) -> None:
        """Send weights to the children with their checksums, which the wafers verify."""
        place = np.empty(PART_BYTES, np.uint8)
        while (nbytes := self._answers.get()) is not None:
            left = nbytes + SUM.size
            while left:
                part = raw(place[: min(left, PART_BYTES)])
                receive_into(self._parent, part)
                for child in self._children.values():
                    child.sendall(part)
                left -= len(part)

    @staticmethod
    def _same(words: Sequence[bytes]) -> bytes:
        """Return the request that all children sent.

        Raises: RuntimeError if they differ
        """
        if len(set(words)) > 1:
            said = ", ".join(word.hex() for word in words)
            raise RuntimeError(f"downstream wafers sent different orders: {said}")
        return words[0]
