"""The README's picture: the floor plan of cnn_mnist's compile report as a standalone SVG.

PYTHONPATH=tests python -m support.floor_plan_image rewrites it.
"""

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from support.pages import CHECKOUT

IMAGE = CHECKOUT / "docs" / "images" / "floor_plan.svg"
MODEL = CHECKOUT / "reference_models" / "cnn_mnist"
CSS = CHECKOUT / "csrun" / "compiler" / "report" / "page" / "page.css"
PIXELS = 12  # height of a label, the unit of the drawing
MARGIN, LEGEND = 1, 3  # in units of the drawing
TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="{x} {y} {width:g} {height:g}" \
width="{pixels_wide:.0f}" height="{pixels_high:.0f}" font-size="1">
  <title>Floor plan of {name} in the compile report</title>
  <style>
    .fabric {{ fill: #f5f6f8; stroke: #d5d9df; }}
    .place rect {{ stroke: #1c2128; stroke-width: .75; }}
    .fabric, .place rect, .beside path {{ vector-effect: non-scaling-stroke; }}
    text {{ font-family: system-ui, sans-serif; fill: #1c2128; dominant-baseline: central; }}
    .place text {{ text-anchor: middle; }}
    .beside path {{ fill: none; stroke: #57606a; }}
{fills}
  </style>
  <rect x="{x}" y="{y}" width="{width:g}" height="{height:g}" fill="#ffffff"/>
{legend}
{body}
</svg>
"""


def compiled_report(folder: Path) -> str:
    """The HTML report of a pipelined compile of the model, in a folder."""
    command = [sys.executable, MODEL / "run.py", "--compile_only"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (page,) = folder.glob("model_dir/tfcs_*/compile_report.html")
    return page.read_text()


def image_of(page: str) -> str:
    """The first drawing of a report's floor plan, with its legend on a white background."""
    section = page[page.index('<section id="floor-plan"') :].partition("</section>")[0]
    kinds = re.findall(r'swatch kind-(\d)"></span>([\w ]+)', section)
    view, body = re.findall(r'<svg viewBox="0 0 ([\d. ]+)"[^>]*>\n(.*?)\n *</svg>', section, re.S)[
        0
    ]
    wide, high = (round(float(size), 3) for size in view.split())
    width, height = wide + 2 * MARGIN, high + 2 * MARGIN + LEGEND
    fills = dict(re.findall(r"\.kind-(\d) \{ --fill: (#\w+); \}", CSS.read_text()))
    return TEMPLATE.format(
        name=MODEL.name,
        x=-MARGIN,
        y=-MARGIN - LEGEND,
        width=width,
        height=height,
        pixels_wide=PIXELS * width,
        pixels_high=PIXELS * height,
        fills="\n".join(f"    .kind-{kind} {{ fill: {fills[kind]}; }}" for kind, _ in kinds),
        legend="\n".join(_legend(kinds)),
        body=_plain(body),
    )


def _legend(kinds: list[tuple[str, str]]) -> list[str]:
    lines, x = [], 0.0
    for kind, label in kinds:
        lines.append(
            f'  <rect class="kind-{kind}" x="{x:.1f}" y="-2.5" width="1" height="1" rx=".15"/>'
            f'<text x="{x + 1.4:.1f}" y="-2">{label}</text>'
        )
        x += 2.8 + 0.6 * len(label)
    return lines


def _plain(body: str) -> str:
    """The drawing without attributes of the page's script, with coordinates of 3 decimals."""
    body = re.sub(r'\s+(tabindex|role|aria-label|aria-hidden|data-layers)="[^"]*"', "", body)
    return re.sub(r"\d+\.\d{4,}", lambda number: f"{float(number[0]):.3f}", body)


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        IMAGE.write_text(image_of(compiled_report(Path(made))))
