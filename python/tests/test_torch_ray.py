"""Ray Train: a run that Ray begins again ends with the bits of one that was not interrupted."""

import os
import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("torch", "ray")

CODEC, STEPS, SAVED = "int4", 8, 4


class Fit:
    """A training that can be continued."""

    def __init__(self, rank, wrap):
        import torch

        torch.manual_seed(3)
        layers = [torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)]
        self.model = wrap(torch.nn.Sequential(*layers))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.rank = rank

    def step(self, number):
        """Makes a step on a batch of this rank's."""
        import torch

        data = torch.Generator().manual_seed(100 * number + self.rank)
        loss = self.model(torch.randn(8, 16, generator=data)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def work(folder):
    """The function of each worker: trains, saves once, and fails after that the first time."""
    import tempfile

    import ray.train
    import torch
    from ray.train.torch import prepare_model

    import thinwire.torch.ray

    fit = Fit(ray.train.get_context().get_world_rank(), prepare_model)
    attached = thinwire.torch.ray.attach(fit.model, CODEC)
    begin, checkpoint = 0, ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as place:
            saved = torch.load(Path(place, "model.pt"), weights_only=True)
        fit.model.load_state_dict(saved["model"])
        fit.optimizer.load_state_dict(saved["optimizer"])
        begin = SAVED
    for step in range(begin, STEPS):
        fit.step(step)
        if step + 1 == SAVED:
            with tempfile.TemporaryDirectory() as place:
                attached.save(place)
                if fit.rank == 0:
                    parts = {"model": fit.model, "optimizer": fit.optimizer}
                    states = {name: part.state_dict() for name, part in parts.items()}
                    torch.save(states, Path(place, "model.pt"))
                ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(place))
        if step + 2 == STEPS and begin == 0:
            # Ray forgets a checkpoint whose worker fails before it has noted it.
            ray.train.get_all_reported_checkpoints()
            raise RuntimeError("the disk is full")
    values = [each.detach() for each in fit.model.parameters()]
    torch.save([begin, values], Path(folder, f"{fit.rank}.pt"))


def uninterrupted(folder):
    """The training under DDP's hook, without Ray."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import thinwire.torch

    dist.init_process_group("gloo")
    fit = Fit(dist.get_rank(), DistributedDataParallel)
    names = fit.model.module.named_parameters()
    fit.model.register_comm_hook(*thinwire.torch.hook(CODEC, named_parameters=names))
    for step in range(STEPS):
        fit.step(step)
    torch.save([each.detach() for each in fit.model.parameters()], f"{folder}/whole.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def cluster():
    """Ray on this machine alone, without its dashboard and its telemetry, begun once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        patch.setenv("PYTHONPATH", path)
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
        ray.init(num_cpus=2, _node_ip_address="127.0.0.1", object_store_memory=80 << 20, **quiet)
        yield
        ray.shutdown()


@pytest.mark.timeout(600)
def test_the_example_runs(cluster):
    """A worker that fails is an error here."""
    example = Path(__file__).parents[2] / "examples/python/torch_ray_train.py"
    runpy.run_path(str(example), run_name="__main__")


@pytest.mark.timeout(600)
def test_a_run_that_begins_again_ends_with_the_same_bits(cluster, ranks, tmp_path):
    import torch
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    failures = FailureConfig(max_failures=1)
    TorchTrainer(
        work,
        train_loop_config=str(tmp_path),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(name="run", storage_path=str(tmp_path), failure_config=failures),
    ).fit()
    ranks(2, uninterrupted, arguments=[str(tmp_path)])
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    for rank in range(2):
        begin, values = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert begin == SAVED
        assert all(torch.equal(here, there) for here, there in zip(values, whole))
    files = sorted(file.name for file in tmp_path.rglob("thinwire*"))
    assert files == ["thinwire.rank0.pt", "thinwire.rank1.pt"]
