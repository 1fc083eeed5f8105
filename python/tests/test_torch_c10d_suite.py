"""PyTorch's own tests of c10d, from its wheel, on the backend "thinwire".

PyTorch starts processes for each test. Here the same ranks play all of them, each test in a process
group of its own, so that the whole suite takes seconds. Many tests say that they are for gloo or MPI
alone, because no other backend of PyTorch does the same on the CPU; they are played here all the same.

Law: every test of the suite is played, or excluded here for a reason.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import os
import re
import tempfile
import time
import traceback
import unittest
from pathlib import Path
from typing import Any

import launch
import pytest

pytestmark = pytest.mark.needs("torch", "expecttest")

WORLD = 4
TEST_TIMEOUT_S = 30.0
SUITE_TIMEOUT_S = 240.0
VERSION = "2.15"
ONLY = re.compile("gloo|mpi", re.IGNORECASE)
ON_THE_CPU_WITH_GLOO = "test_accumulate_gradients"
"""Tests that choose between CPU and GPU by the name of the backend."""

SKIPPED_BY_PYTORCH = """
    test_DistributedDataParallel test_DistributedDataParallel_non_default_stream
    test_barrier_timeout_arg test_broadcast_object_list
    test_compute_bucket_assignment_by_size_sparse_error_with_logger test_ddp_has_finalized
    test_ddp_model_diff_shape_across_ranks test_ddp_profiling_autograd_profiler
    test_ddp_profiling_execution_trace test_new_subgroups test_new_subgroups_by_enumeration
""".split()

ON_A_GPU = """
    test_1_level_hierarchical_model_averager_equivalent_to_periodic_model_averager
    test_3_level_hierarchical_model_averager test_DistributedDataParallel_SyncBatchNorm
    test_DistributedDataParallel_SyncBatchNorm_2D_Input
    test_DistributedDataParallel_SyncBatchNorm_Channels_Last
    test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value
    test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_gradient
    test_DistributedDataParallel_SyncBatchNorm_No_Affine
    test_DistributedDataParallel_SyncBatchNorm_Single_Input_Per_Process
    test_DistributedDataParallel_SyncBatchNorm_half
    test_DistributedDataParallel_with_amp_and_grad_is_view test_DistributedSampler_padding
    test_average_parameters test_coalescing_manager test_coalescing_manager_async
    test_compute_bucket_assignment_by_size_sparse_error_without_logger
    test_ddp_apply_optim_in_backward test_ddp_apply_optim_in_backward_grad_as_bucket_view_false
    test_ddp_apply_optim_in_backward_ignored_params test_ddp_broadcast_buffer
    test_ddp_broadcast_buffer_via_hook test_ddp_broadcast_buffers_deprecation_warning
    test_ddp_bucket_cap_mb_list test_ddp_buffer_hook_allreduce
    test_ddp_buffer_hook_allreduce_return_future test_ddp_build_debug_param_to_name_mapping
    test_ddp_build_debug_param_to_name_mapping_requires_grad test_ddp_comm_hook_logging
    test_ddp_compile_static_graph test_ddp_control_flow_different_across_ranks
    test_ddp_control_flow_same_across_ranks test_ddp_device test_ddp_device_mesh_initialization
    test_ddp_forward_backward_hook test_ddp_grad_div_uneven_inputs test_ddp_hook_parity_allreduce
    test_ddp_hook_parity_allreduce_process_group test_ddp_hook_parity_post_localSGD
    test_ddp_hook_parity_powerSGD test_ddp_hook_pickling_powerSGD
    test_ddp_hook_with_optimizer_parity_adam test_ddp_hook_with_optimizer_parity_adamw
    test_ddp_hook_with_optimizer_parity_sgd test_ddp_ignore_params_arg test_ddp_inference
    test_ddp_init_sync_buffers_with_forward_sync_buffers_false test_ddp_join_model_equivalence
    test_ddp_join_respects_forward_sync_buffers_false test_ddp_model_diff_num_params_across_ranks
    test_ddp_multiple_nested_unused_params_err_ignore_params
    test_ddp_multiple_nested_unused_params_error test_ddp_namedtuple
    test_ddp_native_mixed_precision_grad_as_bucket_view_no_set_grad_none
    test_ddp_native_mixed_precision_grad_as_bucket_view_set_grad_to_none
    test_ddp_native_mixed_precision_ignored_params
    test_ddp_native_mixed_precision_no_grad_as_bucket_view_no_set_grad_none
    test_ddp_native_mixed_precision_no_grad_as_bucket_view_set_grad_to_none
    test_ddp_new_tensor_in_fwd test_ddp_new_tensor_in_fwd_static_graph
    test_ddp_profiling_torch_profiler test_ddp_python_error_logged test_ddp_remove_autograd_hooks
    test_ddp_returns_tensor_with_no_grad test_ddp_shared_grad_acc_unused_params
    test_ddp_sink_noclone test_ddp_static_graph_nested_types test_ddp_sync_bn_training_vs_eval
    test_ddp_sync_module_states test_ddp_uneven_input_exception test_ddp_uneven_input_join_disable
    test_ddp_uneven_inputs test_ddp_uneven_inputs_stop_iteration_sync_bn
    test_ddp_unused_params_rebuild_buckets_exception test_ddp_update_process_group_default_group
    test_ddp_update_process_group_grad_undefined test_ddp_update_process_group_new_group
    test_ddp_update_process_group_no_find_unused test_ddp_zero_output_features
    test_detect_ddp_is_actually_static test_different_graph_across_ranks
    test_get_data_parallel_params test_invalid_static_graph test_monitored_barrier_allreduce_hang
    test_monitored_barrier_allreduce_hang_wait_all_ranks
    test_new_subgroups_by_enumeration_input_rank_exceeds_world_size
    test_new_subgroups_by_enumeration_negative_input_rank
    test_new_subgroups_group_size_exceeds_world_size test_new_subgroups_overlap_not_allowed
    test_new_subgroups_world_size_not_divisible_by_group_size test_output_unused_in_loss_dict_module
    test_output_unused_in_loss_tuple_module test_periodic_model_averager
    test_periodic_model_averager_param_group test_post_localSGD_optimizer_parity
    test_post_localSGD_optimizer_parity_grad_is_view
    test_post_localSGD_optimizer_parity_with_hierarchical_sgd
    test_post_localSGD_optimizer_parity_with_hierarchical_sgd_grad_is_view
    test_post_localSGD_optimizer_step_reload test_skip_all_reduce_unused_parameters
    test_stateless_api_with_ddp test_static_graph_multi_forward test_sync_bn_logged
    test_undefined_grad_parity_unused_parameters test_verify_model_across_rank_with_logger
    test_verify_model_across_rank_without_logger
""".split()

EXCLUDED = {
    r"test_\w*(cuda|nccl|_gpu)\w*": "needs GPUs",
    "|".join(ON_A_GPU): "needs GPUs, though its name does not say so",
    "test_batch_isend_irecv_(mixed_backend|op)_err": "needs NCCL",
    "test_SyncBatchNorm_process_group": "needs torchvision and a GPU",
    r"test_send_recv_any_source\w*": "thinwire matches messages by rank, and says so",
    "test_barrier_timeout_(global|group|full_group)": "looks for gloo's words in the error",
    "|".join(SKIPPED_BY_PYTORCH): "PyTorch skips it on Linux, on every backend",
}
"""Why tests are not played, by patterns of their names."""

PLAYED = """
    test_Backend_enum_class test_DistributedDataParallelCPU
    test_DistributedDataParallelCPU_grad_is_view test_DistributedDataParallel_requires_grad
    test_accumulate_gradients_no_sync test_accumulate_gradients_no_sync_allreduce_hook
    test_accumulate_gradients_no_sync_allreduce_with_then_hook
    test_accumulate_gradients_no_sync_grad_is_view test_all_gather test_all_gather_coalesced_complex
    test_all_gather_coalesced_full_group test_all_gather_coalesced_group
    test_all_gather_coalesced_simple test_all_gather_coalesced_with_empty test_all_gather_complex
    test_all_gather_full_group test_all_gather_group test_all_gather_object_default_pg
    test_all_gather_object_subgroup test_all_reduce_coalesced_full_group_max
    test_all_reduce_coalesced_full_group_min test_all_reduce_coalesced_full_group_product
    test_all_reduce_coalesced_full_group_sum test_all_reduce_coalesced_group_max
    test_all_reduce_coalesced_group_min test_all_reduce_coalesced_group_product
    test_all_reduce_coalesced_group_sum test_all_reduce_coalesced_max
    test_all_reduce_coalesced_max_complex_unsupported test_all_reduce_coalesced_min
    test_all_reduce_coalesced_product test_all_reduce_coalesced_sum
    test_all_reduce_complex_unsupported_ops test_all_reduce_full_group_max
    test_all_reduce_full_group_min test_all_reduce_full_group_product test_all_reduce_full_group_sum
    test_all_reduce_group_max test_all_reduce_group_min test_all_reduce_group_product
    test_all_reduce_group_sum test_all_reduce_max test_all_reduce_min test_all_reduce_product
    test_all_reduce_sum test_all_reduce_sum_async test_all_reduce_sum_complex test_all_to_all
    test_all_to_all_complex test_all_to_all_full_group test_all_to_all_group
    test_all_to_all_single_equal_split test_all_to_all_single_equal_split_complex
    test_all_to_all_single_equal_split_full_group test_all_to_all_single_equal_split_group
    test_all_to_all_single_unequal_split test_all_to_all_single_unequal_split_complex
    test_all_to_all_single_unequal_split_full_group test_all_to_all_single_unequal_split_group
    test_barrier test_barrier_full_group test_barrier_group test_batch_isend_irecv_gloo
    test_batch_isend_irecv_gloo_tags test_batch_isend_irecv_op_list_err test_broadcast
    test_broadcast_full_group test_broadcast_group test_ddp_create_graph test_ddp_logging_data_cpu
    test_destroy_full_group test_destroy_group test_dump_DDP_relevant_env_vars test_gather
    test_gather_checks test_gather_full_group test_gather_group test_gather_object
    test_gather_object_subgroup test_get_backend test_get_future test_get_rank
    test_get_rank_size_full_group test_get_rank_size_group test_grads_same_across_ranks_with_no_sync
    test_irecv test_isend test_isend_autograd_profiler test_isend_torch_profiler
    test_monitored_barrier_failure_order test_monitored_barrier_gloo
    test_monitored_barrier_gloo_rank_0_timeout test_monitored_barrier_gloo_subgroup
    test_monitored_barrier_wait_all_ranks test_new_subgroups_with_group_param
    test_reduce_full_group_max test_reduce_full_group_min test_reduce_full_group_product
    test_reduce_full_group_sum test_reduce_group_max test_reduce_group_min test_reduce_group_product
    test_reduce_group_sum test_reduce_max test_reduce_min test_reduce_product test_reduce_sum
    test_reduce_sum_twice test_scatter test_scatter_checks test_scatter_complex
    test_scatter_full_group test_scatter_group test_scatter_object_list test_send_recv
    test_send_recv_autograd_profiler test_send_recv_torch_profiler test_send_recv_with_tag
    test_send_recv_with_tag_autograd_profiler test_send_recv_with_tag_torch_profiler
    test_sparse_all_reduce_sum test_static_graph_api_cpu
""".split()


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, list[Any]]]:
    """What became of each test on each rank."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_dir").mkdir()
        env = {"BACKEND": "thinwire", "TEMP_DIR": folder, "INIT_METHOD": f"file://{folder}/store"}
        ended = launch.run(
            WORLD, play, arguments=[PLAYED], env=env, timeout=SUITE_TIMEOUT_S, wait_for_all=False
        )
    return launch.results(ended)


@pytest.mark.parametrize("name", PLAYED)
def test_passes_on_all_ranks(name: str, outcomes: list[dict[str, list[Any]]]) -> None:
    """Skips count as failures: a test that no rank plays says nothing."""
    found = [ranks[name] for ranks in outcomes]
    said = "\n".join(f"rank {rank}: {kind} {text}" for rank, (kind, text) in enumerate(found))
    assert all(kind == "passed" for kind, _ in found), said


def test_every_test_is_played_or_excluded_for_a_reason() -> None:
    """A new version of PyTorch brings new tests: they are to be looked at."""
    torch = pytest.importorskip("torch")
    if not torch.__version__.startswith(VERSION):
        pytest.skip(f"the lists are those of torch {VERSION}, this is {torch.__version__}")
    suite = "testing/_internal/distributed/distributed_test.py"
    text = (Path(torch.__file__).parent / suite).read_text()
    tests = set(re.findall(r"^        def (test_\w+)\(", text, re.MULTILINE))
    assert len(PLAYED) == len(set(PLAYED))
    unknown = tests - set(PLAYED) - {name for name in tests if excluded(name)}
    assert not unknown, "tests of PyTorch that are neither played nor excluded"
    assert not set(PLAYED) - tests, "tests that PyTorch does not have"
    both = [name for name in PLAYED if excluded(name)]
    assert not both, "tests that are both played and excluded"


def excluded(name: str) -> str | None:
    """Why a test is not played."""
    for pattern, reason in EXCLUDED.items():
        if re.fullmatch(pattern, name):
            return reason
    return None


def play(names: list[str]) -> dict[str, list[str]]:
    """One rank plays all tests; for each "passed", "skipped" or "failed", and what it said."""
    stage = Stage()
    return {name: stage.play(name) for name in names}


class Stage:
    """The ranks, kept in step by a store of their own."""

    def __init__(self) -> None:
        """Joins the store, and loads the suite with "thinwire" among the backends that it knows."""
        import torch.distributed as dist
        from torch.testing._internal import common_distributed

        import thinwire.torch

        self.dist = dist
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        port, timeout = int(os.environ["MASTER_PORT"]), datetime.timedelta(seconds=60)
        self.store = dist.TCPStore("127.0.0.1", port, self.world, self.rank == 0, timeout)
        for backends in common_distributed.DistTestCases.backend_feature.values():
            backends.add(thinwire.torch.backend.NAME)
        skips = common_distributed.TEST_SKIPS
        self.skips = {skip.exit_code: (name, skip.message) for name, skip in skips.items()}
        self.number, self.meetings = 0, 0
        self.module: Any = None
        self.suite = self.adapted()

    def adapted(self) -> type:
        """The suite's class, whose barriers between ranks go through our store."""
        from torch.testing._internal.common_utils import TestCase
        from torch.testing._internal.distributed import distributed_test

        self.module, stage = distributed_test, self

        class Suite(distributed_test.DistributedTest._DistTestBase, TestCase):
            rank, world_size = stage.rank, stage.world
            init_method = property(lambda self: os.environ["INIT_METHOD"])

            def _barrier(self, *_: Any, **__: Any) -> None:
                stage.meet()

        return Suite

    def play(self, name: str) -> list[str]:
        """Plays one test."""
        self.number, self.meetings = self.number + 1, 0
        faulthandler.cancel_dump_traceback_later()
        faulthandler.dump_traceback_later(2 * TEST_TIMEOUT_S, exit=True)
        try:
            self.act(name)
            self.meet()
        except unittest.SkipTest as skip:
            kind, text = "skipped", str(skip)
        except SystemExit as skip:
            kind, text = "skipped", str(self.skips.get(skip.code, skip.code))
        except BaseException:
            kind, text = "failed", traceback.format_exc(limit=-6)
            self.store.set(f"{self.number}/failed", "")
        else:
            kind, text = "passed", ""
        with contextlib.suppress(Exception):
            self.dist.destroy_process_group()
        self.meet("end")
        return [kind, text]

    def act(self, name: str) -> None:
        """Calls a test in a new process group; one for larger worlds believes that this is one."""
        import torch

        os.environ["WORLD_SIZE"] = str(self.world)
        self.module.BACKEND = "gloo" if name.startswith(ON_THE_CPU_WITH_GLOO) else "thinwire"
        torch.manual_seed(0)
        self.dist.init_process_group(
            "thinwire",
            store=self.dist.PrefixStore(f"test{self.number}", self.store),
            rank=self.rank,
            world_size=self.world,
            timeout=datetime.timedelta(seconds=TEST_TIMEOUT_S),
        )
        test = unwrapped(getattr(self.suite, name))
        try:
            test(self.suite("test_get_rank"))
        except SystemExit as skip:
            if self.skips.get(skip.code, ("",))[0] != "small_worldsize":
                raise
            os.environ["WORLD_SIZE"] = "8"
            test(self.suite("test_get_rank"))

    def meet(self, where: str = "") -> None:
        """Waits until all ranks are here, or one has failed."""
        self.meetings += 1
        key = f"{self.number}/{where or self.meetings}"
        deadline = time.monotonic() + TEST_TIMEOUT_S
        self.store.add(key, 1)
        while self.store.add(key, 0) < self.world:
            if not where and self.store.check([f"{self.number}/failed"]):
                raise RuntimeError("another rank has failed")
            if time.monotonic() > deadline:
                raise RuntimeError(f"not all ranks came to {key}")
            time.sleep(0.001)


def unwrapped(test: Any) -> Any:
    """A test without the decorators that keep it for gloo or MPI."""
    while ONLY.search(getattr(test, "__unittest_skip_why__", "")) and hasattr(test, "__wrapped__"):
        test = test.__wrapped__
    return test
