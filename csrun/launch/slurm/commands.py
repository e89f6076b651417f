"""Slurm commands called during a running job; failures are ignored."""

import subprocess

ANSWER_S = 10.0  # for Slurm to answer over a slow network


def call(*command: str, answer_s: float = ANSWER_S) -> str:
    """Return the output of a command; empty if it is missing or does not answer in `answer_s`."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=answer_s
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
