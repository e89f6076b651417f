"""A script's run: the steps of its Sessions, and the tasks of the job it runs in."""
