"""Slurm commands called during a running job; failures are ignored."""

import subprocess

ANSWER_S = 10.0  # for Slurm to answer over a slow network


def call(*words: str) -> str:
    """Return the output of a command; empty if it is missing or does not answer."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
