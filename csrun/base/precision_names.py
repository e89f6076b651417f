"""Words and numbers of a run's precision that a params file is checked with, without NumPy."""

MIXED = "mixed_"  # before the name of a 16-bit format, in a run's precision
CB16 = "cbfloat16"
CB16_EXPONENT_BIAS = 31
MOST_CB16_BIAS = 62  # the largest exponent is that of 1
OPT_LEVEL = "precision_opt_level"  # a key of the original's sections `runconfig` and `model`
