"""The Input Function Report: what an input pipeline does, and what would make it better."""

from csrun.data.report.examine import examine
from csrun.data.report.finding import Effect, Finding, Severity
from csrun.data.report.pipeline import Pipeline
from csrun.data.report.probe import probe
from csrun.data.report.text import TEXT_FILE, rate_text, report_text, suggestions_text

__all__ = [
    "TEXT_FILE",
    "Effect",
    "Finding",
    "Pipeline",
    "Severity",
    "examine",
    "probe",
    "rate_text",
    "report_text",
    "suggestions_text",
]
