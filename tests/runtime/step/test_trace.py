"""Ring of a process's spans, read by another process, also after the first has ended."""

import signal
import subprocess
import sys

import pytest
from msgspec.structs import replace
from support.running import NETWORK, PIPELINED, SETTINGS, data

from csrun.base.errors import CsrunError
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.chief.machine import Feed
from csrun.runtime.chief.training.tracing import ChiefTrace
from csrun.runtime.chief.training.training import Training
from csrun.runtime.chief.training.training_record import LoopOptions
from csrun.runtime.step import trace
from csrun.runtime.step.trace import RING_BYTES, SpanKind, SpanRecorder, spans_in
from csrun.runtime.wire.messages import StepOrder
from csrun.runtime.wire.shared import SharedMemory

STEPS = (1, 9)


KILLED = """
import os, signal
from csrun.runtime.step.trace import SpanKind, SpanRecorder
from csrun.runtime.wire.shared import SharedMemory
recorder = SpanRecorder((1, 9), SharedMemory.over({}).bytes)
recorder.program = 2
recorder.add(SpanKind.COMPUTE, 7, 1000, 3000)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def memory():
    memory = SharedMemory.create("trace", RING_BYTES, ranges=())
    yield memory
    memory.close()


def test_what_a_killed_process_has_done_last_is_there(memory):
    command = [sys.executable, "-c", KILLED.format(memory.descriptor)]
    assert subprocess.run(command, pass_fds=[memory.descriptor]).returncode == -signal.SIGKILL
    ((kind, program, number, began_ns, ended_ns),) = spans_in(memory.bytes).tolist()
    assert (kind, program, number, ended_ns - began_ns) == (SpanKind.COMPUTE, 2, 7, 2000)


def test_the_oldest_make_room(memory):
    recorder = SpanRecorder(STEPS, memory.bytes)
    for number in range(trace.ROWS + 5):
        recorder.add(SpanKind.BATCH, number, 0, 1)
    assert sorted(spans_in(memory.bytes)[:, 2]) == list(range(5, trace.ROWS + 5))
    told = b"".join(recorder.parts())
    assert len(trace.spans_of(told)) == trace.ROWS


class Written(list):
    """Processes in the trace that would be written, and its path."""

    def __init__(self, monkeypatch):
        super().__init__()
        file = "csrun.runtime.chief.training.tracing.trace_file.write"
        monkeypatch.setattr(file, lambda path, processes: self.append((path.name, [*processes])))

    def computed(self):
        ((_, processes),) = self
        (own,) = (process for process in processes if process.name == "this process")
        return [span.name for span in own.spans if span.track == "compute"]


def test_a_second_programs_visits_have_their_own_names(tmp_path, monkeypatch):
    """Of a training with as many weights in other groups."""
    executables = [NETWORK.compile(tmp_path / f"{size}", PIPELINED, size) for size in (1 << 20, 1)]
    settings, names = replace(SETTINGS, trace_steps=STEPS), []
    for one in executables:
        machine, written = CpuMachine(one, data(NETWORK), settings, 0), Written(monkeypatch)
        machine.initialize()
        machine.run(StepOrder(0, 1))
        ChiefTrace(machine, STEPS, tmp_path).write_if_done(9)
        names.append(written.computed())
    assert len(names[0]) < len(names[1])
    machine, written = CpuMachine(executables[0], data(NETWORK), settings, 0), Written(monkeypatch)
    machine.initialize()
    other = machine.load(executables[1], Feed(data(NETWORK)))
    for step, program in enumerate((machine, other, machine)):
        program.run(StepOrder(step, 1))
    ChiefTrace(machine, STEPS, tmp_path).write_if_done(9)
    assert written.computed() == [*names[0], *names[1], *names[0]]


def test_a_run_that_fails_leaves_what_was_traced_until_then(tmp_path, monkeypatch):
    batches = data(NETWORK)
    batches.all[4][0][0] = float("nan")
    settings = replace(SETTINGS, trace_steps=(3, 9))
    machine = CpuMachine(NETWORK.compile(tmp_path, PIPELINED), batches, settings, 0)
    machine.initialize()
    options = LoopOptions(tmp_path, 0, 20, 100, 100, 5, {}, 0.0, settings)
    with pytest.raises(CsrunError, match="loss is nan at step 5"):
        Training(machine, options, None, lambda progress: None).run()
    assert [path.name for path in (tmp_path / "trace").iterdir()] == ["steps_3_9_failed.json"]
