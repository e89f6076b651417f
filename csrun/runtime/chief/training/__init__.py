"""Training by the chief: step orders, checkpoints, events, log lines, traces and reports."""
