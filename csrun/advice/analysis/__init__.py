"""Analysis of an input pipeline from measurements: scaling laws, recommendation, report."""
