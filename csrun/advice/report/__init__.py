"""The Input Function Report: what an input pipeline does, and what would make it better."""

from csrun.advice.report.finding import Effect, Finding, Severity
from csrun.advice.report.pipeline import Pipeline
from csrun.advice.report.probe import probe
from csrun.advice.report.rules import examine
from csrun.advice.report.text import TEXT_FILE, rate_text, report_text, suggestions_text

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
