"""`--params <(...)`: a pipe is read once, and every task of a job has its params."""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import pytest
from support.fc_mnist import FcMnist

from csrun.base.errors import UsageError
from csrun.context import JobFile
from csrun.jobs.request import JobRequest
from csrun.launch import piped_params
from csrun.launch.piped_params import read_piped_params, store_piped_params
from csrun.launch.user_command import UserCommand

JOB = JobFile(1, None, ("python-ws", "run.py", "--params", "pipe"), "/", "local", 1, 1, ())


@contextmanager
def pipe_of(path: Path, text: str) -> Iterator[None]:
    """Pipe that gives this text to its first reader only."""
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(text,))
    writer.start()
    yield
    writer.join()


@pytest.mark.parametrize("words", [("--params", "{}"), ("--params={}",), ("-p", "{}"), ("-p={}",)])
def test_the_text_is_kept_where_every_task_may_read_it(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    pipe = str(tmp_path / "pipe")
    command = ("python-ws", "run.py", *(word.format(pipe) for word in words), "--mode", "train")
    with pipe_of(tmp_path / "pipe", "model: {}\n"):
        request = read_piped_params(JobRequest(command))
    assert UserCommand(command).with_params(pipe).argv == command
    for folder in (tmp_path / "job", tmp_path / "compiling"):  # a job may have one before it
        folder.mkdir()
        job = store_piped_params(request, JOB, folder)
        path = folder / "params.yaml"
        assert job.command == UserCommand(JOB.command).with_params(str(path)).argv
        assert path.read_text() == "model: {}\n"


def test_a_file_is_left_to_its_readers(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").touch()
    for path in (tmp_path / "params.yaml", tmp_path / "none.yaml"):
        request = JobRequest(("python-ws", "run.py", "--params", str(path)))
        assert read_piped_params(request) is request
    assert store_piped_params(request, JOB, tmp_path) is JOB


@pytest.mark.parametrize("way", [{"sbatch": True}, {"foreground": {}}])
def test_a_pipe_is_not_there_where_the_command_runs_later(
    tmp_path: Path, way: dict[str, object]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = ("python-ws", "run.py", "--params", str(tmp_path / "pipe"))
    with pytest.raises(UsageError, match=r"is a pipe, .*: pass a regular file"):
        read_piped_params(JobRequest(command, **way))  # type: ignore[arg-type]


def test_a_writer_may_take_its_time(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = ("python-ws", "run.py", "--params", str(tmp_path / "pipe"))

    def write() -> None:
        with open(tmp_path / "pipe", "wb", buffering=0) as pipe:
            for part in (b"model:", b" {}\n"):
                sleep(0.1)
                pipe.write(part)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_piped_params(JobRequest(command)).params == b"model: {}\n"
    writer.join()


def test_a_pipe_that_nobody_writes_into_or_that_never_ends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piped_params, "WRITER_S", 0.1)
    os.mkfifo(tmp_path / "pipe")
    request = JobRequest(("python-ws", "run.py", "--params", str(tmp_path / "pipe")))
    with pytest.raises(UsageError, match=r"pipe: is a pipe without a writer: pass a regular file$"):
        read_piped_params(request)
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        path = f"/dev/fd/{writer.stdout.fileno()}"
        with pytest.raises(UsageError, match=r"cannot be read: more than [\d,]+ bytes$"):
            read_piped_params(JobRequest(("python-ws", "run.py", "--params", path)))
        writer.kill()


def test_a_job_of_many_tasks_reads_its_params_from_a_pipe(tmp_path: Path) -> None:
    place = FcMnist(tmp_path)
    place.configure(runconfig__max_steps=3)
    text = (tmp_path / "params.yaml").read_text()
    (tmp_path / "params.yaml").unlink()
    with pipe_of(tmp_path / "pipe", text):
        done = place.wse("--params", "pipe")
    assert done.returncode == 0, done.stderr
    assert place.checkpoint(3).exists()
    with pipe_of(tmp_path / "wrong", text.replace("momentum", "momentun")):
        done = place.wse("--params", "wrong")
    assert done.returncode == 2
    assert f"{place.jobs}/2/params.yaml: optimizer.momentun: unknown key" in done.stderr
