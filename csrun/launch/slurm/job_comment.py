"""csrun's note in the comment of a Slurm job, after the user's text; visible to all users.

Slurm does not accept a comment for an ended job.

Source: scontrol(1), update JobId Comment; squeue(1), %k
"""

from csrun.launch.slurm.commands import call

LOST = "csrun: launcher lost"  # while csrun_wse is silent and the job continues
TIME_LIMIT = "csrun: time limit"  # csrun has ended the job at its own limit
PREFIX = "csrun: "
MOST_CHARACTERS = 250
_BETWEEN = "; "
_NONE = "(null)"


def add_note(job_id: int, text: str) -> None:
    """Add a note to the job's comment."""
    own = _comment(job_id)
    if own is not None and not own.endswith(text):
        _update(job_id, f"{own}{_BETWEEN}{text}" if own else text)


def cause(text: str) -> str:
    """Return the note about the reason of a failure, in one short line."""
    line = f"{PREFIX}{text.partition(chr(10))[0]}"
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 3]}..."


def note_of(comment: str) -> str:
    """Return csrun's note in a comment, without its prefix; empty if there is none."""
    _, prefix, text = comment.rpartition(PREFIX)
    return text.strip() if prefix else ""


def forget(job_id: int) -> None:
    """Remove csrun's note of an earlier start of the job."""
    own = _comment(job_id)
    if own is not None and PREFIX in own:
        _update(job_id, own.partition(PREFIX)[0].removesuffix(_BETWEEN))


def remove_note(job_id: int, text: str) -> None:
    """Restore the comment to the state before the text was added."""
    own = _comment(job_id)
    if own is not None and own.endswith(text):
        _update(job_id, own.removesuffix(text).removesuffix(_BETWEEN))


def _comment(job_id: int) -> str | None:
    """Return the first component's comment, equal for all; None if Slurm does not answer."""
    lines = call("squeue", "--noheader", f"--jobs={job_id}", "--format=%k").splitlines()
    return lines[0].removesuffix(_NONE).strip() if lines else None


def _update(job_id: int, text: str) -> None:
    call("scontrol", "update", f"JobId={job_id}", f"Comment={text}")
