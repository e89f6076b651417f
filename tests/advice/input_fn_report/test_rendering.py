"""Text of the report."""

from support.chains import arrays, batch, chain, map_of, repeat, shuffle

from csrun.advice.input_fn_report import Pipeline, examine, rate_text, report_text, suggestions_text
from csrun.data.input_operators import StageTime

GOLDEN = """\
Suggestions to improve input_fn performance
 3 warnings, 1 hint, sorted by gain
[input_fn] - repeat(): training has a batch for every step (warning, data.py:1)
    now:    the data ends after step 16 of 300
    change: add .repeat() before .batch(…), and set max_steps
[input_fn] - shuffle(): samples are shuffled, not batches (warning, data.py:4)
    now:    only batches are shuffled, each has the same samples in every pass
    change: move .shuffle(…) before .batch(…)
[input_fn] - map(): map whole batches (warning, data.py:2)
    now:    load is called per sample, 64 times per batch
    change: move .batch(64, …) before .map(load), which then gets arrays of 64
    gain:   about 72% of the input time
[input_fn] - batch(): training batches are full (info, data.py:3)
    now:    the last batch of a pass has 40 samples, but costs as much as a batch of 64
    change: batch(…, drop_remainder=True), or .repeat() before .batch(…)
    gain:   about 2% of the input time
End of input_fn suggestions

Input pipeline

 operator                                    where      works on  ms per batch  share
 from_arrays(arrays=2, samples=1000)         data.py:1  sample               -      -
 map(load)                                   data.py:2  sample           4.000    80%
 batch(batch_size=64, drop_remainder=False)  data.py:3  batch            1.000    20%
 shuffle(seed=1)                             data.py:4  batch                -      -

One streamer delivers about 12,800 samples/s on this machine; the CS system is estimated to \
consume 100,000: 9 streamers are needed.
"""


def test_the_whole_report() -> None:
    pipeline = Pipeline(
        chain(arrays(), map_of(), batch(64), shuffle()),
        cardinality=16,
        last_step=300,
        cpus=2,
        wanted_per_s=100_000,
        costs={"map load": StageTime(0.004, 0.004), "batch": StageTime(0.001, 0.001)},
        batch_s=0.005,
    )
    assert report_text(pipeline, examine(pipeline)) == GOLDEN


def test_nothing_found_is_one_line() -> None:
    pipeline = Pipeline(chain(arrays(), shuffle(), repeat(), batch(64)))
    banners = (
        "Suggestions to improve input_fn performance",
        " Nothing to improve was found.",
        "End of input_fn suggestions",
    )
    assert suggestions_text(examine(pipeline)).splitlines() == list(banners)


def test_a_streamer_beside_the_system() -> None:
    operators = chain(arrays(), shuffle(), repeat(), batch(64))
    assert rate_text(Pipeline(operators)) == ""
    assert rate_text(Pipeline(operators, batch_s=0.5)).endswith("128 samples/s on this machine.")
    enough = Pipeline(operators, batch_s=0.5, wanted_per_s=113.0)
    assert rate_text(enough).endswith("to consume 113: one streamer is enough.")
    just = Pipeline(operators, batch_s=0.5, wanted_per_s=128.0)  # as a run that waits would say
    assert rate_text(just).endswith("to consume 128: 2 streamers are needed.")
    stream = Pipeline(operators, batch_s=0.5, wanted_per_s=500.0, indexable=False)
    assert rate_text(stream).endswith(
        "to consume 500: more streamers do not help, as each makes all batches."
    )
