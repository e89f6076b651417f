"""Every import of the Model Zoo resolves; on an error it would silently use its own stubs."""

import importlib

import pytest

pytest.importorskip("torch", reason="the front end is PyTorch's")

MODULES = {
    "cerebras.framework.torch": (
        "Session compile dataloader env initialize module optimizer state amp core data nn optim"
    ),
    "cerebras.framework.torch.amp": (
        "GradScaler enabled get_init_params load_state_dict opt_level state_dict"
    ),
    "cerebras.framework.torch.core": "cb_model modes name_scope",
    "cerebras.framework.torch.core.modes": "EVAL INFERENCE TRAIN TRAIN_AND_EVAL get_modes is_valid",
    "cerebras.framework.torch.core.cb_model": (
        "RateTracker device get_ordinal get_run_step get_streaming_rank is_master_ordinal "
        "is_receiver is_streamer is_sync_mode is_wse_device mark_step mesh_reduce "
        "metrics_counter_value num_receivers num_streamers num_tasks print_metrics_report "
        "print_update rendezvous run_step_closures save set_metric_state_names set_run_config "
        "set_target_num_replicas step_closure to_cpu use_cs write_to_summary"
    ),
    "cerebras.framework.torch.data": "DataLoader",
    "cerebras.framework.torch.nn": "StripPadding",
    "cerebras.framework.torch.optim": "Optimizer lr_scheduler",
    "cerebras.framework.torch.optim.lr_scheduler": (
        "Constant CosineAnnealing CosineDecay Exponential InverseExponentialTimeDecay Lambda "
        "MultiStep Polynomial Step"
    ),
    "cerebras.framework.torch.utils": "data extract_loss",
    "cerebras.framework.torch.utils.data.dataloader": "DataLoader",
    "cerebras.pb.common.cerebras_type_pb2": "T_CB16 T_F16",
    "cerebras.pb.stack.autogen_pb2": "AP_DISABLED",
    "cerebras.workflow.python.cs_perf_analyzer": "AssessBottlenecks locate_csperf_log",
}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_the_original_has_its_names(module):
    found = importlib.import_module(module)
    assert [name for name in MODULES[module].split() if not hasattr(found, name)] == []
