"""Contents of compile_report.html as text, and when it is written."""

import subprocess
import sys

import msgspec
import pytest
from support.programs import Network, options_of
from support.reports import NAMES, report_of

from csrun.base.mode import ExecutionMode
from csrun.compiler import compile_model
from csrun.compiler.passes.pass_manager import PASSES
from csrun.compiler.report.contents import count, percent, render, si


def test_a_compile_leaves_its_report_beside_the_program(tmp_path):
    executable = Network().compile(tmp_path, ExecutionMode.PIPELINED)
    page = (executable.directory / "compile_report.html").read_text()
    rates = (
        "Numbers of any precision count as 16-bit ones, 2 bytes each and 4 multiply-adds per PE "
    )
    wanted = [executable.plan.checksum, rates, "dense_1", "cs2-01", "def bind_wafer(v, runtime):"]
    wanted += [f">{step.name}<" for step in PASSES]
    assert not [text for text in wanted if text not in page]


def test_the_report_needs_nothing_beside_itself(tmp_path):
    page = render(report_of(tmp_path))
    assert not [text for text in ("http://", "https://", "src=", "href=", "url(") if text in page]


def test_names_are_text_wherever_they_stand(tmp_path):
    page = render(report_of(tmp_path, kernels="</code></pre><script>alert(1)</script>"))
    assert NAMES[3] not in page
    assert page.count("&lt;b&gt;head&lt;/b&gt; &amp; &#34;co&#34;") >= 4
    assert page.count("<script>") == 1


def test_every_replica_is_drawn_and_a_row_counts_all_their_pes(tmp_path):
    network = Network(sizes=(12, 40, 5), batch=4)
    executable = compile_model(network.trace(), tmp_path, options_of(replicas=3)).executable
    page = (executable.directory / "compile_report.html").read_text()
    assert "<dt>Replicas</dt><dd>3</dd>" in page
    plan = executable.plan
    for layer in plan.layers:
        regions = [r for r in plan.floor_plan if r.layer == layer.name]
        for number in (1, 2, 3):
            assert f"<title>{layer.name}, replica {number} of 3: " in page
        assert f'data-value="{sum(r.rectangle.pes for r in regions)}"' in page


def test_without_places_there_is_no_floor_plan(tmp_path):
    report = report_of(tmp_path)
    plan = msgspec.structs.replace(report.plan, floor_plan=())
    page = render(report_of(tmp_path, plan=plan, generated=()))
    assert "There is no floor plan" in page
    assert "<svg" not in page
    assert ">PEs<" not in page
    assert "kernels of the library compute every operator" in page


def test_a_model_without_layers_has_a_report(tmp_path):
    plan = report_of(tmp_path).plan
    estimate = msgspec.structs.replace(plan.estimate, layers=())
    plan = msgspec.structs.replace(plan, layers=(), floor_plan=(), estimate=estimate)
    assert plan.checksum in render(report_of(tmp_path, plan=plan, stages=()))


def test_in_weight_streaming_the_report_names_memoryx(tmp_path):
    report = report_of(tmp_path, mode=ExecutionMode.WEIGHT_STREAMING)
    assert report.facts["Mode"] == "weight streaming, train"
    assert "MemoryX memory" in report.facts
    assert "MemoryX memory" not in report_of(tmp_path).facts


def test_only_a_compile_that_is_written_imports_jinja2():
    code = "import sys, csrun.compiler; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count(479188.6), "479,189"),
        (count(100), "100"),
        (count(99.94), "99.9"),
        (count(0.04213), "0.0421"),
        (count(0), "0"),
        (percent(1), "100%"),
        (percent(0.99981), "99.98%"),
        (percent(0.0000421), "below 0.01%"),
        (si(0, "B"), "0 B"),
        (si(999, "B"), "999 B"),
        (si(999_499, "B"), "999 kB"),
        (si(999_501, "B"), "1 MB"),
        (si(1_537_600, "B"), "1.54 MB"),
        (si(6.2e18, "FLOP"), "6.2 EFLOP"),
    ],
)
def test_numbers_have_enough_digits_and_no_more(text, expected):
    assert text == expected
