"""How a task learns that it is to stop."""


class Terminated(BaseException):
    """SIGTERM arrived: stop in order, as for a KeyboardInterrupt.

    The launcher's task wrapper raises it, once, in the main thread of every Python task. Code that
    has something to finish or to discard does so in `finally` or on this exception, within the
    launcher's grace period, and lets it pass; the task then ends with exit code 143.
    """
