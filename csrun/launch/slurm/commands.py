"""Slurm's commands as the processes of a running job call them; failures are ignored."""

import subprocess

ANSWER_S = 10.0  # for Slurm, over a slow network


def call(*words: str) -> str:
    """Output of a command; empty when it is missing or does not answer."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
