"""Hypothesis for tests that write files: the same examples each time, at whatever speed."""

from hypothesis import HealthCheck, settings


def examples(count: int) -> settings:
    """So many examples, which may share a test's folder."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
