"""Processes of a job on one machine: fork server, tasks, their output."""
