"""Wrapper that srun starts around csrun_cpu's command if there is a time limit.

Started as `python -P -m csrun.launch.slurm.timed_command LIMIT_S GRACE_S CMD...` on the command's
node. The limit therefore counts from the command's start instead of from its submission, and to the
second, whereas Slurm's limit has a resolution of minutes. At the limit the command gets SIGTERM and
its grace period; srun would kill it immediately.
"""

import sys
from collections.abc import Sequence

from csrun.context import environment
from csrun.jobs.time_limit import EXIT_TIME_LIMIT, reached
from csrun.launch.process.foreground import ForegroundCommand, run_in_foreground

MODULE = "csrun.launch.slurm.timed_command"


def timed_argv(
    python: str, limit_s: int, grace_s: float, command: Sequence[str]
) -> tuple[str, ...]:
    """Return the command by which srun enforces a command's limit."""
    return (python, "-P", "-m", MODULE, str(limit_s), str(grace_s), *command)


def main(argv: Sequence[str]) -> int:
    """Run the command to its end or its limit; return the exit code."""
    limit_s, grace_s, *command = argv
    ending = run_in_foreground(
        ForegroundCommand(
            tuple(command),
            environment.inherited(),
            time_limit_s=int(limit_s),
            grace_s=float(grace_s),
        )
    )
    if not ending.timed_out:
        return ending.exit_code
    print(f"csrun_cpu: {reached(int(limit_s))}: command terminated", file=sys.stderr, flush=True)
    return EXIT_TIME_LIMIT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
