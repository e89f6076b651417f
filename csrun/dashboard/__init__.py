"""Web page of jobs and model_dirs: a local read-only server, and the same page as a file."""

from csrun.dashboard.run_catalog import RunCatalog

__all__ = ["RunCatalog"]
