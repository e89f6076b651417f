"""Roles of a run, one file each."""
