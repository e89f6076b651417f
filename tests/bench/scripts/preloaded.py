"""Runs scripts in forks of a process that has imported PyTorch and transformers, which takes long.

Each line of standard input is a JSON object with `folder`, `arguments`, `environment`, `path` (of
modules) and `limit_s`. A fork runs the script there as `python SCRIPT`, with `stdout` and `stderr`
in files of the folder, and its exit code is a line of standard output; 124 past the limit.
"""

import contextlib
import json
import os
import runpy
import signal
import sys
import time
from typing import Any

TIMED_OUT = 124


def serve() -> dict[str, Any] | None:
    """Fork for each line; return the request in the fork, None at the end."""
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            return request
        print(wait_for(child, request["limit_s"]), flush=True)
    return None


def wait_for(child: int, limit_s: float) -> int:
    """Exit code of a child, which is killed with its group at the limit."""
    ends = time.monotonic() + limit_s
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > ends:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return TIMED_OUT
        time.sleep(0.05)


def become(request: dict[str, Any]) -> None:
    """Take on the working folder, arguments, environment and output of a script's process."""
    os.setpgid(0, 0)
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path[:] = [*request["path"], *sys.path[1:]]
    sys.argv[:] = request["arguments"]


if __name__ == "__main__":
    import torch

    with contextlib.suppress(ImportError):  # not installed: no script of this run needs it
        import transformers
        import transformers.modeling_utils  # noqa: F401

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if (found := serve()) is not None:
        become(found)
        runpy.run_path(sys.argv[0], run_name="__main__")
