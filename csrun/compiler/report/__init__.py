"""Compile reports: compile_report.txt and compile_report.html, with floor plan."""
