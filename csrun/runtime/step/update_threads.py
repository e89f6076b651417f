"""Update threads of MemoryX: the CPUs of its task share the update of a large group.

Two CPUs compute the halves of a group concurrently; the program defines the elements of a half.
More CPUs share the loops of machine code. The bits do not depend on the threads. If the second
thread has not started its half when the first one is done, because other work uses the CPUs, the
first thread computes that half, too.
"""

from collections.abc import Callable
from dataclasses import replace

from csrun.executable import Executable, Runtime, StepState, UpdateProgram
from csrun.executable.arrays import Bytes
from csrun.executable.bind import Halves
from csrun.executable.threads import threads_of_updates
from csrun.runtime.step.call_threads import CallThreads


class UpdateThreads:
    """Threads next to the one that requests updates, one for each further CPU of the task.

    calls: the threads, for other work between updates.
    """

    def __init__(self, processors: int) -> None:
        self.calls = CallThreads(processors)

    def bind(self, executable: Executable, store: Bytes, runtime: Runtime) -> UpdateProgram:
        """Return the update functions of a program over a store, for these threads."""
        threads = threads_of_updates(executable.plan, self.calls.count)
        program = executable.update_program(store, replace(runtime, threads=threads))
        return program if threads > 1 else self.over(program)

    def over(self, program: UpdateProgram) -> UpdateProgram:
        """Return the same program with concurrent halves."""
        if self.calls.count == 1:
            return program
        whole = enumerate(program.update)
        halves = program.halves
        return replace(
            program,
            update=[self._both(halves[g]) if g in halves else update for g, update in whole],
        )

    def close(self) -> None:
        """Stop the threads."""
        self.calls.close()

    def _both(self, halves: Halves) -> Callable[[StepState], None]:
        def update(step: StepState) -> None:
            self.calls.run(lambda number: halves[number](step), range(2))

        return update
