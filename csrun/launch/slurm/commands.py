"""Slurm's commands as the processes of a running job call them, which go on whatever they say."""

import subprocess

ANSWER_S = 10.0  # for Slurm, over a slow network


def call(*words: str) -> str:
    """What a command says; nothing when it is not there, or does not answer."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
