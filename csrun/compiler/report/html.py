"""compile_report.html: one page that needs nothing beside itself."""

from pathlib import Path

from csrun.base.pages import page
from csrun.compiler.report.contents import Report
from csrun.compiler.report.quantities import si

HTML_FILE = "compile_report.html"
PAGE = Path(__file__).with_name("page")


def render(report: Report) -> str:
    """The page's text."""
    return page(PAGE, {"si": si}, report=report)
