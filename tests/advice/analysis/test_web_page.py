"""input_analysis.html in a browser: drawn to scale, in wide and narrow windows."""

from pathlib import Path

import pytest
from support.browser import chromium, needs_browser, show
from support.pipelines import analysis_of

from csrun.advice.analysis import web_page

pytestmark = needs_browser

CENTRE = """
const b = arguments[0].getBoundingClientRect();
return [(b.left + b.right) / 2, (b.top + b.bottom) / 2];
"""


def test_points_lie_on_their_law_to_scale_and_nothing_sticks_out(tmp_path: Path) -> None:
    """100,000 samples/s with one task, 200,000 with two and with four; the target is 198,000."""
    page = web_page.write(analysis_of(), tmp_path)
    with chromium(tmp_path / "profile") as browser:
        for scheme, width in (("light", 1100), ("dark", 420)):
            show(browser, page, width, scheme)
            dots = browser.find_elements("css selector", ".chart .measured")
            (x1, y1), (x2, y2), (x4, y4) = (browser.execute_script(CENTRE, dot) for dot in dots)
            assert x4 - x2 == pytest.approx(2 * (x2 - x1), abs=0.5)
            assert y2 == pytest.approx(y4, abs=0.5)
            floor = browser.find_elements("css selector", ".chart .grid")[0]
            _, y0 = browser.execute_script(CENTRE, floor)
            assert y0 - y2 == pytest.approx(2 * (y0 - y1), abs=0.5)
            (target,) = browser.find_elements("css selector", ".chart .target")
            _, wanted = browser.execute_script(CENTRE, target)
            assert (y0 - wanted) / (y0 - y2) == pytest.approx(0.99, abs=0.005)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            answers = browser.find_elements("css selector", ".answer dd")
            assert [answer.text for answer in answers] == ["1", "3", "1", "2", "200,000"]
        assert browser.get_log("browser") == []
