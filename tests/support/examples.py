"""Hypothesis for tests that write files."""

from hypothesis import HealthCheck, settings


def examples(count: int) -> settings:
    """This many examples, which may share a test's folder."""
    health = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=count, suppress_health_check=health)
