"""Models of transformers as files: torch's parameters, shown and planned."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from imported_models import IMAGES, TEXT, TOKENS, built

pytestmark = pytest.mark.needs("torch", "transformers")

ROOT = Path(__file__).parents[2]

CLUSTER = """
[[device]]
name = "core"
tflops = 0.001
memory_gib = 1
memory_gbyte_per_s = 1

[[level]]
name = "node"
size = 4
latency_us = 1
gbit = 100

[[level]]
name = "nodes"
size = 2
latency_us = 10
gbit = 1
"""


def run(folder, *arguments):
    """What the command prints in a folder; the test is skipped where there is no command."""
    places = [ROOT / "target" / kind / "thinwire" for kind in ("debug", "release")]
    places.insert(0, Path(os.environ.get("THINWIRE_COMMAND", "/nowhere")))
    program = next((place for place in places if place.is_file()), None)
    if program is None:
        pytest.skip("there is no command: cargo build makes it")
    ended = subprocess.run(
        [program, *arguments], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, f"{arguments}: {ended.stderr}"
    return ended.stdout


@pytest.mark.parametrize("name", [*TEXT, *IMAGES])
def test_a_model_has_the_parameters_of_torch_and_is_shown_and_planned(name, tmp_path):
    import torch

    import thinwire.torch

    model = built(name)
    size = 16 if name == "vit" else 32
    tokens = torch.zeros(2, TOKENS, dtype=torch.long)
    example = tokens if name in TEXT else torch.zeros(2, 3, size, size)
    thinwire.torch.export_graph(model, (example,), tmp_path / "model.json")
    tensors = json.loads((tmp_path / "model.json").read_text())["tensors"]
    # Weights of linear layers are [in, out] in a file.
    expected = {name: sorted(value.shape) for name, value in model.named_parameters()}
    found = {t["name"]: sorted(t["shape"]) for t in tensors if isinstance(t["role"], dict)}
    assert found == expected
    report = json.loads(run(tmp_path, "model", "show", "model.json", "--json"))
    assert report["parameters"] == sum(value.numel() for value in model.parameters())
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    machines = ["--cluster", "cluster.toml", "--batch", "16"]
    run(tmp_path, "plan", "make", "--model", "model.json", *machines)
