"""Headless browser: Debian's chromium and chromium-driver, through selenium."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)
END_S = 10.0  # for the browser's processes to end

needs_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="needs Debian's packages chromium and chromium-driver"
)


@contextmanager
def chromium(profile: Path) -> Iterator:
    """Browser with a separate profile, whose processes are killed at the end."""
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, ChromeService(DRIVER))
    try:
        yield driver
    finally:
        processes = _of(profile)
        driver.quit()
        assert not psutil.wait_procs(processes, END_S)[1]
        assert not _of(profile)


def _of(profile: Path) -> list[psutil.Process]:
    """Processes with this profile on their command lines."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(profile) in argument for argument in process.info["cmdline"] or ()):
            found.append(process)
    return found


def show(driver, page: Path, width: int, scheme: str = "light") -> None:
    """Open a page in a window of this width, in a light or dark scheme."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(page.as_uri())
