"""Analyses of a run."""
