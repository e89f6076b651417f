"""Input Function Report: findings about an input pipeline, and suggestions."""

from csrun.advice.input_fn_report.finding import Effect, Finding, Severity
from csrun.advice.input_fn_report.first_batches import Probe, probe
from csrun.advice.input_fn_report.pipeline import Pipeline
from csrun.advice.input_fn_report.rendering import (
    TEXT_FILE,
    rate_text,
    report_text,
    suggestions_text,
)
from csrun.advice.input_fn_report.rules import examine

__all__ = [
    "TEXT_FILE",
    "Effect",
    "Finding",
    "Pipeline",
    "Probe",
    "Severity",
    "examine",
    "probe",
    "rate_text",
    "report_text",
    "suggestions_text",
]
