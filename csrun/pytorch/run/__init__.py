"""A script's run: queue, orders to the wafer, replay, and the roles of a job's tasks."""
