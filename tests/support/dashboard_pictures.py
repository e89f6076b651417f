"""The pictures of docs/dashboard.md: a run, and the wafer of a pipelined one, by Chromium.

scripts/dashboard_pictures rewrites them.
"""

import base64
import os
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from support.browser import chromium
from support.dashboards import serving
from support.fc_mnist import FcMnist
from support.jobs import until
from support.pages import CHECKOUT

IMAGES = CHECKOUT / "docs" / "images"
RUN, WAFER = IMAGES / "dashboard.png", IMAGES / "dashboard_wafer.png"
MOST_BYTES = 200_000
WIDTH, HEIGHT = 1240, 860
CALL = 9  # of the step in the second picture, in which each layer has a minibatch of its own


def _train(folder: Path, **changes: Any) -> FcMnist:
    """A folder with a training that has ended."""
    folder.mkdir()
    place = FcMnist(folder)
    place.configure(
        runconfig__max_steps=1200,
        runconfig__log_steps=20,
        runconfig__trace_steps=[100, 103],
        **changes,
    )
    return place


def _take(driver: Any, path: Path, top: float, height: float) -> None:
    """Write a strip of the page, of its full width.

    The window is as high as the strip's end: a page outside of a window is not painted in time by a
    busy machine.
    """
    _resize(driver, ceil(top + height))
    clip = {"x": 0, "y": top, "width": WIDTH, "height": height, "scale": 1}
    options = {"format": "png", "clip": clip}
    data = base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"])
    assert len(data) < MOST_BYTES, f"{path}: {len(data):,} bytes"
    path.write_bytes(data)


def _resize(driver: Any, height: int) -> None:
    size = {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
    )


def _open(driver: Any, url: str, run: str) -> None:
    driver.get("about:blank")
    driver.get(f"{url}#run/{run}")
    until(lambda: bool(driver.find_elements("css selector", "#call")))


def main() -> None:
    """Draw the pictures."""
    with TemporaryDirectory() as folder:
        streamed = _train(Path(folder) / "streamed")
        assert streamed.wse("--mode", "train").returncode == 0
        pipelined = _train(
            Path(folder) / "pipelined",
            model__hidden_sizes=[300, 200, 100],
            runconfig__minibatches_in_flight=4,
        )
        assert pipelined.cpu("--mode", "train").returncode == 0
        state = {"CSRUN_STATE_DIR": str(streamed.path / "state")}
        with (
            mock.patch.dict(os.environ, state),
            serving(Path(folder)) as server,
            chromium(Path(folder) / "profile") as driver,
        ):
            driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
            _resize(driver, HEIGHT)
            _open(driver, server.url, "1")
            _take(driver, RUN, 0, HEIGHT)
            rows = server.query(lambda catalog: catalog.rows()).rows
            (other,) = (row.id for row in rows if row.job_id is None)
            _open(driver, server.url, other)
            script = """
                const slider = document.querySelector("#call");
                slider.value = arguments[0];
                slider.dispatchEvent(new Event("input"));
                const box = document.querySelector("section#wafer").getBoundingClientRect();
                return [box.top + scrollY, box.height];
            """
            top, height = driver.execute_script(script, CALL)
            _take(driver, WAFER, top, height)


if __name__ == "__main__":
    main()
