"""The picture of docs/top.md: a screen of `csrun top` beside a real job.

scripts/top_picture rewrites it.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from unittest import mock

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.segment import SegmentLines
from support.fc_mnist import FcMnist
from support.jobs import STALL_S, until
from support.pages import CHECKOUT

from csrun.launch import backend_of
from csrun.site import load
from csrun.watch import Collector, SiteSnapshot
from csrun.watch.live import REFRESH_S
from csrun.watch.screen import ScreenView, screen

IMAGE = CHECKOUT / "docs" / "images" / "top.svg"
MOST_BYTES = 200_000
COLUMNS, LINES = 124, 32
MAX_STEPS = 1000
POINTS = 60  # logged steps in the picture
WAITING = ("--total-nodes", "15", "--tasks-per-node", "1", "--cpus-per-task", "1", "-J", "wide",
           "sleep", "1")  # fmt: skip
FONTS = re.compile(r"@font-face \{\{.*?\}\}", re.DOTALL)  # which rich has loaded from elsewhere


def drawn(snapshot: SiteSnapshot) -> str:
    """A snapshot as an SVG."""
    console = Console(
        width=COLUMNS, height=LINES, record=True, file=StringIO(), force_terminal=True
    )
    selected = None if snapshot.job is None else snapshot.job.job_id
    console.print(
        SegmentLines(screen(snapshot, console, ScreenView(selected)), new_lines=True), end=""
    )
    console.print(" ")  # or the picture cuts the letters of the last line at their feet
    template = FONTS.sub("", CONSOLE_SVG_FORMAT)
    return console.export_svg(title="csrun top", code_format=template, unique_id="top")


@contextmanager
def _job(folder: Path) -> Iterator[None]:
    """A training, and a job that waits for its nodes."""
    place = FcMnist(folder)
    place.configure(runconfig__max_steps=MAX_STEPS, runconfig__log_steps=5)
    with place.start_wse("--mode", "train", script=place.slow_copy()) as launcher:
        place.wait_for("model_dir")
        with place.start(*WAITING) as waiting:
            try:
                yield
            finally:
                waiting.terminate()
                waiting.communicate(timeout=STALL_S)
                launcher.terminate()
                launcher.communicate(timeout=STALL_S)


def main() -> None:
    """Draw the picture."""
    with TemporaryDirectory() as folder:
        state = {"CSRUN_STATE_DIR": str(Path(folder) / "state")}
        with mock.patch.dict(os.environ, state), _job(Path(folder)):
            site = load("local")
            collector, found = Collector(site, backend_of(site)), []

            def has_enough() -> bool:
                sleep(REFRESH_S)
                found[:] = [collector.snapshot(1)]
                detail = found[0].job
                run = None if detail is None else detail.run
                return run is not None and len(run.losses) >= POINTS and len(found[0].jobs) > 1

            until(has_enough)
            IMAGE.write_text(drawn(found[0]))


if __name__ == "__main__":
    main()
