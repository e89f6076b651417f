"""compile_report.txt: the original's format, and no nonzero number that is printed as zero."""

import re
from types import SimpleNamespace

import pytest
from support.programs import Network, options_of

from csrun.compiler import compile_model
from csrun.compiler.report.text_report import text_report
from csrun.executable import Estimate, LayerEstimate, machine_code

ESTIMATE = Estimate(
    2321.9, 2321.9, 14311.72, 0.93, 0.000000004321,
    (
        LayerEstimate("fc_0", 5203, 2430.75, 2430.75, 14311.72, 1.0),
        LayerEstimate("block_11/attention", 9, 0.00001234, 0.00001234, 4.5e9, 0.0),
    ),
)  # fmt: skip
LIMIT = SimpleNamespace(
    sentence="Limited by the links out of " + "one layer, " * 10 + "at least.",
    total="A batch takes long.",
    rates="Numbers count as 16-bit ones.",
    micro_batches="",
    recomputation="",
)
EXPECTED = """\
Estimated Overall Performance

 Samples/s:                    2321.9
 Compute Samples/s:            2321.9
 Transmission Samples/s:       14311.7
 Active PEs:                   93.00%
 Compute Utilization:          0.0000004321%

"""
ROWS = [
    ["Kernel Name", "Samples/s", "Compute Samples/s", "Transmission Samples/s", "Active PEs",
     "Compute Utilization"],
    ["fc_0", "2430.8", "2430.8", "14311.7", "5203", "100.0%"],
    ["block_11/attention", "0.00001234", "0.00001234", "4500000000.0", "9", "0.0%"],
]  # fmt: skip


def table(report: str) -> list[str]:
    return [line for line in report.splitlines() if line.startswith((" |", " +"))]


def cells(lines: list[str]) -> list[list[str]]:
    return [[c.strip() for c in line.strip(" |").split("|")] for line in lines if "|" in line]


def test_head_and_table_read_as_the_originals_do():
    report = text_report(ESTIMATE, 1, LIMIT)
    assert report.startswith(EXPECTED)
    assert cells(table(report)) == ROWS
    assert len({len(line) for line in table(report)}) == 1


def test_the_replicas_are_told():
    assert " Replicas of the model: 4." in text_report(ESTIMATE, 4, LIMIT)


def test_what_limits_the_model_stands_before_the_table():
    before, rule, after = text_report(ESTIMATE, 1, LIMIT).partition(" +---")
    assert " ".join(before.split("\n\n")[2].split()) == LIMIT.sentence
    assert rule
    assert LIMIT.total in after
    assert LIMIT.rates in after
    assert max(map(len, before.splitlines())) <= 100


def test_a_model_without_layers_has_a_head_and_no_rows():
    assert cells(table(text_report(Estimate(1.0, 1.0, 2.0, 0.0, 0.0, ()), 1, LIMIT))) == ROWS[:1]


def test_a_compile_leaves_the_report_of_its_estimate(tmp_path):
    executable = compile_model(Network().trace(), tmp_path, options_of()).executable
    estimate = executable.plan.estimate
    text = (executable.directory / "compile_report.txt").read_text()
    head = dict(re.findall(r"^ ([A-Z][^:]+): +([\d.]+)%?$", text, re.MULTILINE))
    assert float(head["Samples/s"]) == pytest.approx(estimate.samples_per_sec, rel=1e-3)
    utilization = estimate.compute_utilization
    assert float(head["Compute Utilization"]) / 100 == pytest.approx(utilization, rel=1e-3)
    names = [row[0] for row in cells(table(text))[1:]]
    assert names == ["dense", "dense_1", "dense_2"]


@pytest.mark.parametrize(("is_installed", "reason"), [(False, "llvmlite"), (True, "the CPU lacks")])
def test_the_report_names_what_machine_code_needs(tmp_path, monkeypatch, is_installed, reason):
    monkeypatch.setattr(machine_code, "is_supported", lambda: False)
    monkeypatch.setattr(machine_code, "is_installed", lambda: is_installed)
    directory = compile_model(Network().trace(), tmp_path, options_of()).executable.directory
    report = " ".join((directory / "compile_report.txt").read_text().split())
    assert f"Kernels run in NumPy, because {reason}" in report
    assert ("pip install llvmlite" in report) == (not is_installed)
