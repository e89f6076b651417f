"""Processes of an array: one launcher per element, a limited number at a time, with prefixed
output.
"""

import os
import selectors
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

from csrun.base.errors import OutputError, shell_code
from csrun.base.safe_text import printable
from csrun.jobs.signals import ENDING_SIGNALS
from csrun.launch.life.job_loop import ending_signals
from csrun.launch.process.process_tree import die_with_parent

_READ_BYTES = 1 << 16
_EXIT_BUG = 1


@dataclass(frozen=True)
class ElementLauncher:
    """Function that runs an element in a separate process and returns its exit code."""

    index: int
    run: Callable[[], int]


class _PrefixedLines:
    """Output stream of an element; complete lines are printed with its index in front."""

    def __init__(self, index: int, source: int, target: TextIO) -> None:
        self.source = source
        os.set_blocking(source, False)
        self._prefix, self._target = f"{index}: ", target
        self._begun = b""

    def show(self) -> bool:
        """Print new lines; False if there was no data, for example at the end."""
        try:
            data = os.read(self.source, _READ_BYTES)
        except BlockingIOError:
            return False
        *lines, self._begun = (self._begun + data).split(b"\n")
        self._print(lines)
        return bool(data)

    def end(self) -> None:
        """Print the remaining text, even if another process still holds the pipe open."""
        while self.show():
            pass
        self._print([self._begun] if self._begun else [])
        os.close(self.source)

    def _print(self, lines: Iterable[bytes]) -> None:
        with suppress(OutputError):  # no reader: the jobs continue, and their logs are written
            for line in lines:
                text = printable(line.decode(errors="replace"))
                print(self._prefix + text, file=self._target, flush=True)


@dataclass(frozen=True)
class _RunningElement:
    """Running element; `process` is the process descriptor of its launcher."""

    index: int
    pid: int
    process: int
    outputs: tuple[_PrefixedLines, _PrefixedLines]


class ArrayRun:
    """Run of all elements of an array.

    A signal to end is forwarded to all running elements, and no further one is started. A failed
    element does not stop the others.
    """

    def __init__(
        self,
        elements: Iterable[ElementLauncher],
        at_once: int,
        on_end: Callable[[int, int], None],
    ) -> None:
        self._waiting = deque(elements)
        self._at_once = at_once
        self._on_end = on_end
        self._running: dict[int, _RunningElement] = {}
        self._codes: list[int] = []
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Run all elements; return the highest of their exit codes."""
        with ending_signals() as signals, self._selector:
            self._selector.register(signals, selectors.EVENT_READ)
            while self._waiting or self._running:
                while self._waiting and len(self._running) < self._at_once:
                    self._start(self._waiting.popleft())
                # Exits last: they close outputs that may have events of the same poll.
                events = [key for key, _ in self._selector.select()]
                for key in sorted(events, key=lambda key: isinstance(key.data, _RunningElement)):
                    if key.fileobj is signals:
                        self._cancel(signals.recv(64)[0])
                    elif isinstance(key.data, _RunningElement):
                        self._end(key.data)
                    elif not key.data.show():
                        self._selector.unregister(key.fileobj)
        return max(self._codes, default=0)

    def _start(self, element: ElementLauncher) -> None:
        out, err = os.pipe(), os.pipe()
        sys.stdout.flush()  # otherwise both processes would write the buffered text
        sys.stderr.flush()
        parent = os.getpid()
        # A signal between the fork and its handler would be lost: the array's handler gets it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
        pid = os.fork()
        if pid == 0:
            self._run_launcher(element, (out[1], err[1]), parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for _, write_end in (out, err):
            os.close(write_end)
        outputs = (
            _PrefixedLines(element.index, out[0], sys.stdout),
            _PrefixedLines(element.index, err[0], sys.stderr),
        )
        running = _RunningElement(element.index, pid, os.pidfd_open(pid), outputs)
        self._running[pid] = running
        self._selector.register(running.process, selectors.EVENT_READ, running)
        for output in outputs:
            self._selector.register(output.source, selectors.EVENT_READ, output)

    def _run_launcher(
        self, element: ElementLauncher, write_ends: tuple[int, int], parent: int
    ) -> None:
        """Run an element in the forked process; never returns."""
        code = _EXIT_BUG
        try:
            os.setsid()  # the array's process forwards Ctrl-C, so it arrives once
            self._selector.close()
            for sibling in self._running.values():
                for descriptor in (sibling.process, *(each.source for each in sibling.outputs)):
                    os.close(descriptor)
            null = os.open(os.devnull, os.O_RDONLY)
            for source, target in zip((null, *write_ends), (0, 1, 2), strict=True):
                os.dup2(source, target)
                os.close(source)
            _restore_signals()
            die_with_parent(parent, signal.SIGTERM)
            code = element.run()
            sys.stdout.flush()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def _cancel(self, signum: int) -> None:
        for element in self._waiting:
            self._finish(element.index, 128 + signum)
        self._waiting.clear()
        for each in self._running.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(each.process, signum)

    def _end(self, running: _RunningElement) -> None:
        _, status = os.waitpid(running.pid, 0)
        self._selector.unregister(running.process)
        os.close(running.process)
        for output in running.outputs:
            with suppress(KeyError):  # it has ended meanwhile
                self._selector.unregister(output.source)
            output.end()
        del self._running[running.pid]
        self._finish(running.index, shell_code(os.waitstatus_to_exitcode(status)))

    def _finish(self, index: int, code: int) -> None:
        self._codes.append(code)
        self._on_end(index, code)


def _restore_signals() -> None:
    """Restore the signal handlers of a new process; pending signals are delivered."""
    signal.set_wakeup_fd(-1)
    for signum in ENDING_SIGNALS:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            usual = signal.default_int_handler if signum is signal.SIGINT else signal.SIG_DFL
            signal.signal(signum, usual)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
