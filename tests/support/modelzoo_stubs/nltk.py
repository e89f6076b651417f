"""nltk as far as a metric imports it."""


def ngrams(sequence, n):
    return zip(*(sequence[k:] for k in range(n)), strict=False)
