"""PyTorch's own tests of c10d, from its wheel, on the backend "thinwire", and under the hook of DDP.

PyTorch starts processes for each test. Here the same ranks play all of them, each test in a process
group of its own, so that the whole suite takes seconds. Many tests say that they are for gloo or MPI
alone, because no other backend of PyTorch does the same on the CPU; they are played here all the same.

Tests that make a DDP are played once more, on gloo and on "thinwire", in a run in which every DDP has
Thinwire's hook with the codec "none" from its first moment.

torch_c10d_suite.txt lists all tests, with the reason for those that are not played.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import functools
import os
import re
import tempfile
import time
import traceback
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import launch

pytestmark = pytest.mark.needs("torch", "expecttest")

WORLD = 4
HOOKED_WORLD = 2
TEST_TIMEOUT_S = 300.0
SUITE_TIMEOUT_S = 900.0
VERSION = "2.15"
ONLY = re.compile("gloo|mpi", re.IGNORECASE)
ON_THE_CPU_WITH_GLOO = "test_accumulate_gradients"
"""Tests that choose between CPU and GPU by the name of the backend."""
HOOKS_OF_THEIR_OWN = {
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
}
"""Tests that register a hook, of which a DDP takes one."""
HOOKED = [
    "test_DistributedDataParallelCPU",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_accumulate_gradients_no_sync",
    "test_accumulate_gradients_no_sync_grad_is_view",
    "test_ddp_create_graph",
    "test_ddp_logging_data_cpu",
    "test_grads_same_across_ranks_with_no_sync",
    "test_static_graph_api_cpu",
]
"""All others that make a DDP."""


def listed() -> dict[str, str]:
    """Every test of the suite, with the reason why it is not played, if there is one."""
    lines = Path(__file__).with_name("torch_c10d_suite.txt").read_text().splitlines()
    pairs = [line.partition(": ") for line in lines if not line.startswith("#")]
    return {name: reason for name, _, reason in pairs}


PLAYED = [name for name, reason in listed().items() if not reason]


Outcomes = list[dict[str, list[Any]]]


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """What became of each test on each rank, on the backend "thinwire"."""
    return run(WORLD, play, PLAYED)


@pytest.fixture(scope="module")
def hooked_outcomes() -> Outcomes:
    """What became of each test with every DDP hooked, on each rank."""
    return run(HOOKED_WORLD, play_hooked, HOOKED)


def run(world: int, program: Callable[..., Any], names: list[str]) -> Outcomes:
    """Plays tests on so many ranks, in a folder that is theirs."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_dir").mkdir()
        options = {"timeout": SUITE_TIMEOUT_S, "wait_for_all": False}
        return launch.results(launch.run(world, program, arguments=[folder, names], **options))


def expect_passed(found: list[list[Any]]) -> None:
    """Skips count as failures: a test that no rank plays says nothing."""
    said = "\n".join(f"rank {rank}: {kind} {text}" for rank, (kind, text, _) in enumerate(found))
    assert all(kind == "passed" for kind, *_ in found), said


@pytest.mark.parametrize("name", PLAYED)
def test_passes_on_all_ranks(name: str, outcomes: Outcomes) -> None:
    expect_passed([ranks[name] for ranks in outcomes])


@pytest.mark.parametrize("backend", ["gloo", "thinwire"])
@pytest.mark.parametrize("name", HOOKED)
def test_passes_with_every_ddp_hooked(name: str, backend: str, hooked_outcomes: Outcomes) -> None:
    found = [ranks[f"{backend} {name}"] for ranks in hooked_outcomes]
    expect_passed(found)
    assert all(made for *_, made in found), "no DDP was hooked"


def test_every_test_that_makes_a_ddp_is_played_hooked(outcomes: Outcomes) -> None:
    made = {name for name, (*_, made) in outcomes[0].items() if made}
    assert made == HOOKS_OF_THEIR_OWN | set(HOOKED)


def test_every_test_of_pytorch_is_listed() -> None:
    """A new version of PyTorch brings new tests: they are to be looked at."""
    torch = pytest.importorskip("torch")
    if not torch.__version__.startswith(VERSION):
        pytest.skip(f"the lists are those of torch {VERSION}, this is {torch.__version__}")
    suite = "testing/_internal/distributed/distributed_test.py"
    text = (Path(torch.__file__).parent / suite).read_text()
    tests = set(re.findall(r"^        def (test_\w+)\(", text, re.MULTILINE))
    assert tests == set(listed()), "tests that are missing in the list, or in PyTorch"


def play(folder: str, names: list[str]) -> dict[str, list[Any]]:
    """One rank plays all tests; for each "passed", "skipped" or "failed", what it said, and how many
    DDPs it made."""
    stage = Stage(folder)
    return {name: stage.play(name, "thinwire") for name in names}


def play_hooked(folder: str, names: list[str]) -> dict[str, list[Any]]:
    """One rank plays all tests on two backends, with every DDP hooked."""
    import thinwire.torch

    def hooked(model: Any) -> None:
        model.register_comm_hook(*thinwire.torch.hook("none", model.process_group))

    stage = Stage(folder, hooked)
    backends = ["gloo", "thinwire"]
    return {
        f"{backend} {name}": stage.play(name, backend) for name in names for backend in backends
    }


class Stage:
    """The ranks, kept in step by a store of their own."""

    def __init__(self, folder: str, made: Callable[[Any], None] = lambda model: None) -> None:
        """Joins the store, and loads the suite with "thinwire" among the backends that it knows.

        Every DDP is given to `made` when it is made.
        """
        import torch.distributed as dist
        from torch.testing._internal import common_distributed

        import thinwire.torch

        # The suite reads these when it is imported.
        os.environ |= {
            "BACKEND": "gloo",
            "TEMP_DIR": folder,
            "INIT_METHOD": f"file://{folder}/store",
        }
        self.dist = dist
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        port, timeout = int(os.environ["MASTER_PORT"]), datetime.timedelta(seconds=60)
        self.store = dist.TCPStore("127.0.0.1", port, self.world, self.rank == 0, timeout)
        for backends in common_distributed.DistTestCases.backend_feature.values():
            backends.add(thinwire.torch.backend.NAME)
        skips = common_distributed.TEST_SKIPS
        self.skips = {skip.exit_code: (name, skip.message) for name, skip in skips.items()}
        self.number, self.meetings, self.ddps = 0, 0, 0
        self.follow(made)
        self.module: Any = None
        self.suite = self.adapted()

    def follow(self, made: Callable[[Any], None]) -> None:
        """Counts every DDP that is made from now on, and calls `made` with it."""
        from torch.nn.parallel import DistributedDataParallel

        begin = DistributedDataParallel.__init__

        @functools.wraps(begin)
        def followed(model: Any, *args: Any, **options: Any) -> None:
            begin(model, *args, **options)
            self.ddps += 1
            made(model)

        DistributedDataParallel.__init__ = followed

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

    def play(self, name: str, backend: str) -> list[Any]:
        """Plays one test on a backend."""
        self.number, self.meetings, self.ddps = self.number + 1, 0, 0
        faulthandler.cancel_dump_traceback_later()
        faulthandler.dump_traceback_later(2 * TEST_TIMEOUT_S, exit=True)
        try:
            self.act(name, backend)
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
        return [kind, text, self.ddps]

    def act(self, name: str, backend: str) -> None:
        """Calls a test in a new process group; one for larger worlds believes that this is one."""
        import torch

        os.environ["WORLD_SIZE"] = str(self.world)
        self.module.BACKEND = "gloo" if name.startswith(ON_THE_CPU_WITH_GLOO) else backend
        torch.manual_seed(0)
        self.dist.init_process_group(
            backend,
            store=self.dist.PrefixStore(f"test{self.number}", self.store),
            rank=self.rank,
            world_size=self.world,
            timeout=datetime.timedelta(seconds=TEST_TIMEOUT_S),
        )
        self.meet()  # gloo may hang where one rank leaves while the other connects
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
