"""Execution of an Executable: `roles` has the tasks of a run, `step` computes, `wire` and `remote`
connect.
"""
