"""Estimates of the compiler, compared with published throughput of models outside of the fit."""

import workloads  # noqa: F401  puts fc_mnist on the import path
from published import ROWS, predicted
from result import Result


def main() -> None:
    """One result a published figure."""
    for row in ROWS:
        value, factor = predicted(row), row.within if row.is_run else None
        Result(
            "estimates", row.model, "estimate, fitted without it", "samples/s", value,
            f"published {row.samples_per_sec:,.7g} ({row.source})", value / row.samples_per_sec, 1,
            at_least=1 / factor if factor else None, at_most=factor,
        ).print()  # fmt: skip


if __name__ == "__main__":
    main()
