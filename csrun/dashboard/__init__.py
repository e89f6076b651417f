"""Web page of jobs and model_dirs: a local server that only reads, and the same page as a file."""

from csrun.dashboard.contents_of_runs import RunCatalog

__all__ = ["RunCatalog"]
