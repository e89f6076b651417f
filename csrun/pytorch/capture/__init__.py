"""Step 1 of the user's loop, written down: what it computes, on what, and in which lines."""

from csrun.pytorch.capture.errors import CaptureError, failure_of, user_line
from csrun.pytorch.capture.recorder import Recorder
from csrun.pytorch.capture.recording import Kind, Leaf, Operator, Recording, Ref, Source
from csrun.pytorch.capture.traced import Traced

__all__ = [
    "CaptureError",
    "Kind",
    "Leaf",
    "Operator",
    "Recorder",
    "Recording",
    "Ref",
    "Source",
    "Traced",
    "failure_of",
    "user_line",
]
