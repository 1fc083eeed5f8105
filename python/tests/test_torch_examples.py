"""The examples for PyTorch run, learn, and say what they miss."""

import importlib.util
import re
import subprocess
import sys
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


def told(example, word, *arguments):
    """The numbers that an example's rank 0 prints after `word`, run by two ranks."""
    outcomes = launch.run(2, EXAMPLES / example, arguments=arguments, timeout=100)
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
    outcomes = launch.run(2, EXAMPLES / "numpy_all_reduce.py", timeout=60)
    launch.results(outcomes)
    assert outcomes[0].stdout == "2 ranks, average [0.5, 0.5, 0.5, 0.5]\n"


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
        [*command, *arguments], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("step 1 loss ")


@pytest.mark.parametrize("example", ADAPTERS)
def test_an_adapter_says_what_is_missing(example):
    if importlib.util.find_spec(ADAPTERS[example]) is not None:
        pytest.skip(f"{ADAPTERS[example]} is installed")
    ended = subprocess.run(
        [sys.executable, EXAMPLES / example],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"No module named '{ADAPTERS[example]}'")
    assert "(hint: pip install" in ended.stderr
    assert ended.stderr.count("\n") == 1
