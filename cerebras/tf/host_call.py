"""Metrics that a model_fn asks for by a host_call."""

from csrun.tensorflow.tf_spec import host_call_to_eval_metric_ops, validate_host_call

__all__ = ["host_call_to_eval_metric_ops", "validate_host_call"]
