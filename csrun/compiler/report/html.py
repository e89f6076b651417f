"""compile_report.html: one page that needs nothing beside itself."""

from pathlib import Path

from csrun.compiler.report.contents import Report
from csrun.compiler.report.quantities import si

HTML_FILE = "compile_report.html"
PAGE = Path(__file__).with_name("page")


def render(report: Report) -> str:
    """The page's text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # only a real compile pays

    environment = Environment(
        loader=FileSystemLoader(PAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["si"] = si
    return environment.get_template("page.html").render(report=report)
