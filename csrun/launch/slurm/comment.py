"""What csrun notes of a job where Slurm keeps it, behind the comment that its user gave it.

Source: scontrol(1), update JobId Comment; squeue(1), %k
"""

from csrun.launch.slurm.commands import call

LOST = "csrun: launcher lost"  # while nothing is heard of csrun_wse, and the job goes on
TIME_LIMIT = "csrun: time limit"  # csrun has ended the job by its own
_BETWEEN = "; "
_NONE = "(null)"


def note(job_id: int, text: str) -> None:
    """Add one of these to the job's comment."""
    own = _comment(job_id)
    if own is not None and not own.endswith(text):
        _update(job_id, f"{own}{_BETWEEN}{text}" if own else text)


def take_back(job_id: int, text: str) -> None:
    """Leave the comment as if the text had never been added."""
    own = _comment(job_id)
    if own is not None and own.endswith(text):
        _update(job_id, own.removesuffix(text).removesuffix(_BETWEEN))


def _comment(job_id: int) -> str | None:
    """The first component's, as all have it; None when Slurm does not say."""
    lines = call("squeue", "--noheader", f"--jobs={job_id}", "--format=%k").splitlines()
    return lines[0].removesuffix(_NONE).strip() if lines else None


def _update(job_id: int, text: str) -> None:
    call("scontrol", "update", f"JobId={job_id}", f"Comment={text}")
