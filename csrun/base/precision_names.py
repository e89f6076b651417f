"""Names and limits of a run's precision, used to check a params file without importing NumPy."""

MIXED = "mixed_"  # prefix of a 16-bit format in a run's precision
CB16 = "cbfloat16"
CB16_EXPONENT_BIAS = 31
MOST_CB16_BIAS = 62  # with this bias the largest exponent is that of 1
OPT_LEVEL = "precision_opt_level"  # key of the original's sections `runconfig` and `model`
