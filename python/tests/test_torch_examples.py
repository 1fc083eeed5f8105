"""The examples for PyTorch run, learn, and say what they miss."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import launch

pytestmark = pytest.mark.needs("torch")

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"
ADAPTERS = {
    "torch_accelerate.py": "accelerate",
    "torch_lightning.py": "lightning",
    "torch_ray_train.py": "ray",
    "torch_transformers.py": "transformers",
}
# Lightning starts ranks itself, where no launcher has. Ray's example runs in test_torch_ray.py.
LAUNCHED = {"torch_accelerate.py": 2, "torch_transformers.py": 2}
UNLAUNCHED = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))


def told(example, word, *arguments):
    """The numbers that an example's rank 0 prints after `word`, run by two ranks."""
    outcomes = launch.run(2, EXAMPLES / example, arguments=arguments)
    launch.results(outcomes)
    return [float(number) for number in re.findall(rf"\b{word} ([\d.]+)", outcomes[0].stdout)]


def test_the_ddp_example_learns(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question; " * 50)
    losses = told(
        "torch_ddp_gpt.py", "loss", "--data", str(text), "--steps", "30", "--codec", "int8"
    )
    assert losses[-1] < 0.7 * losses[0]


def test_the_diloco_example_learns():
    right = told("torch_diloco.py", "right", "--steps", "300")
    assert right[-1] > right[0] + 0.1


def test_the_ddp_example_learns_on_the_backend():
    losses = told("torch_ddp_gpt.py", "loss", "--steps", "20", "--backend", "thinwire")
    assert losses[-1] < losses[0]


def test_the_numpy_example_averages():
    outcomes = launch.run(2, EXAMPLES / "numpy_all_reduce.py")
    launch.results(outcomes)
    assert outcomes[0].stdout == "2 ranks, average [0.5, 0.5, 0.5, 0.5]\n"


@pytest.mark.needs("torch_geometric")
def test_the_graph_example_learns_what_features_alone_do_not_tell(tmp_path):
    from types import SimpleNamespace

    import torch

    from thinwire.torch.graph import save

    random = torch.Generator().manual_seed(1)
    count = 600
    block = torch.randint(3, (count,), generator=random)
    edges = torch.randint(count, (2, 40 * count), generator=random)
    # All edges within a block, a tenth of the others.
    within = block[edges[0]] == block[edges[1]]
    kept = within | (torch.rand(edges.shape[1], generator=random) < 0.1)
    noise = 2 * torch.randn(count, 3, generator=random)
    x = torch.nn.functional.one_hot(block).float() + noise
    train = torch.arange(count) % 2 == 0
    data = SimpleNamespace(
        edge_index=edges[:, kept], x=x, y=block, train_mask=train, test_mask=~train
    )
    save(data, tmp_path / "parts.graph", [0, 250, count])
    alone = float((x.argmax(1) == block).float().mean())
    (reached,) = told(
        "torch_graph.py",
        "accuracy",
        str(tmp_path / "parts.graph"),
        "--batch",
        "32",
        "--codec",
        "int8",
    )
    assert reached > alone + 0.2


def test_an_example_runs_under_torchrun():
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    arguments = [EXAMPLES / "torch_ddp_gpt.py", "--steps", "20"]
    ended = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("step 1 loss ")


@pytest.mark.needs("transformers", "accelerate", "lightning")
@pytest.mark.parametrize("example", [name for name in ADAPTERS if name != "torch_ray_train.py"])
def test_an_example_of_another_framework_runs(example):
    # As `accelerate launch --cpu` says it.
    env = {"ACCELERATE_USE_CPU": "true", **({} if example in LAUNCHED else UNLAUNCHED)}
    outcomes = launch.run(LAUNCHED.get(example, 1), EXAMPLES / example, env=env)
    launch.results(outcomes)
    assert "loss" in outcomes[0].stdout + outcomes[0].stderr


def without(module):
    """Imports the adapter of a framework that is not installed."""
    sys.modules[module] = None
    importlib.import_module(f"thinwire.torch.{module}")


@pytest.mark.parametrize("module", ADAPTERS.values())
def test_a_framework_that_is_missing_is_named_with_the_way_to_get_it(module):
    (ended,) = launch.run(1, without, arguments=[module])
    assert ended.code == 1
    last = ended.stderr.strip().rpartition("\n")[2]
    assert last.startswith(f"ImportError: thinwire.torch.{module} needs ")
    assert "(hint: pip install " in last


def restarted(folder, *arguments):
    """The output of the example that restarts, under torchrun."""
    program = [EXAMPLES / "torch_restart.py", "--folder", folder, *arguments]
    options = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "2"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_a_training_that_restarts_ends_as_if_no_rank_had_died(tmp_path):
    whole = launch.run(
        2, EXAMPLES / "torch_restart.py", arguments=["--folder", str(tmp_path / "whole")]
    )
    launch.results(whole)
    (expected,) = whole[0].stdout.splitlines()
    going_on, ended = restarted(tmp_path / "killed", "--kill", "25")
    assert going_on == "going on from step 20"
    assert ended == expected and ended.startswith("step 60 loss ")


def test_the_elastic_example_goes_on_under_a_torchrun_for_each_rank(tmp_path):
    from thinwire._core import Coordinator

    sys.path.append(str(EXAMPLES.parents[1] / "bench"))
    import samples

    # Neither is done before the other has come.
    state = tmp_path / "state"
    coordinator = Coordinator("127.0.0.1:0", "0123456789abcdef", min_ranks=2, state=state)
    record = tmp_path / "record"
    env = {**launch.surroundings(), **dict(coordinator.seat()), "THINWIRE_MEMBER": "new"}
    options = ["--standalone", "--nproc-per-node", "1", "--max-restarts", "3"]
    program = [EXAMPLES / "torch_elastic.py", "--folder", tmp_path, "--record", record]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *program]
    command += ["--passes", "2", "--workers", "1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    agents = [subprocess.Popen(command, env=env, **pipes) for _ in range(2)]
    try:
        begun = []
        while len(begun) < 2:
            time.sleep(0.05)
            begun = [file for file in record.glob("*.json") if file.read_text().count("\n") > 4]
        os.kill(int(begun[0].stem), signal.SIGKILL)
        with ThreadPoolExecutor(2) as readers:  # one whose pipe is full holds up the other
            said = list(readers.map(lambda agent: agent.communicate(timeout=600), agents))
    finally:
        for agent in agents:
            agent.terminate()
            agent.wait()
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert samples.passes(record) == 2
    (last,) = [json.loads(out)["validation"][-1] for out, _ in said if out]
    assert last["value"] < 2
