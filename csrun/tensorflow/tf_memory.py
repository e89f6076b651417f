"""Memory of TensorFlow in a task that uses it to read data."""

import logging

import psutil

from csrun.base.sizes import size_text
from csrun.context import current

log = logging.getLogger("csrun")


def warn_of_memory() -> None:
    """Log, in a job's first streamer, how much memory a task with TensorFlow has."""
    context = current()
    if context is None or not context.streamers or context.rank != context.streamers[0]:
        return
    used = psutil.Process().memory_info().rss
    log.warning(
        f"tf.data: each of the {len(context.streamers)} streamers imports TensorFlow and reads the "
        f"data from its start; this one has {size_text(used)} of memory: csrun.data reads TFRecord "
        "files without it"
    )
