"""Every block of Python on the pages for users runs, but for a few that a test machine cannot run."""

import ast
import functools
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pages
import rank

LEFT_OUT = {
    "loader = NeighborLoader(thinwire.torch.graph.pyg.stores(": (
        "docs/python.md > Graphs",
        "PyG's sampler needs pyg-lib or torch-sparse",
    ),
    "features = thinwire.torch.graph.graphbolt.feature_store(": (
        "docs/python.md > Graphs",
        "GraphBolt is part of DGL, which needs PyTorch 2.2",
    ),
    "torch.onnx.export(": (
        "docs/planning.md > The model",
        "the exporter needs onnxscript",
    ),
}
"""How blocks begin that no test runs, each with its page and heading, and the reason."""


PAIR = {
    "README.md > DDP": "own_loop",
    "docs/python.md > DDP": "ddp",
    "docs/python.md > Hosts of several GPUs": "ddp",
    "docs/worse-loss.md > A milder codec": "ddp",
    "docs/worse-loss.md > A codec for some parameters": "ddp",
    "docs/python.md > FSDP2 on hosts": "on_hosts",
    "docs/monitoring.md > TensorBoard and trackers of experiments": "monitored",
    "docs/python.md > Saving and resuming": "saved",
    "docs/python.md > A training that restarts after a rank dies": "restarted",
    "docs/python.md > A process group among other ranks": "reconfigured",
}
ALONE = {
    "docs/python.md > Try it on one machine": "ddp",
    "docs/python.md > Ranks that come and go": "elastic",
    "docs/python.md > Parameter server": "servers",
    "docs/python.md > Graphs": "graphs",
    "docs/python.md > Planning a model": "planned",
    "docs/planning.md > Images": "images",
    "docs/policies.md > PyTorch": "adapted",
}
STARTS = {
    "README.md > Spot machines": "elastic",
    "README.md > Graph neural networks": "graphs",
    "README.md > Recommenders": "servers",
}
FRAMEWORKS = {
    "docs/python.md > Trainer, Accelerate, Lightning, Ray Train": "frameworks",
    "docs/planning.md > The model": "imported",
}
MINDSPORE = {
    "docs/python.md > MindSpore": "in_a_loop",
    "docs/python.md > Saving and resuming": "saved",
    "docs/python.md > Planning a model": "planned",
    "docs/planning.md > The model": "imported",
    "docs/python.md > Tables on parameter servers": "served",
    "docs/elastic.md > MindSpore": "elastic",
    "docs/policies.md > MindSpore": "adapted",
}
KERAS = {
    "README.md > Keras": "in_a_loop",
    "docs/keras-tensorflow.md > Keras": "fitted",
    "docs/keras-tensorflow.md > Order of wrappers": "fitted",
    "docs/keras-tensorflow.md > Residuals": "fitted",
    "docs/keras-tensorflow.md > Modes": "fitted",
    "docs/keras-tensorflow.md > TensorFlow": "in_a_loop",
    "docs/keras-tensorflow.md > Errors": "fitted",
    "docs/keras-tensorflow.md > Ranks that come and go": "elastic",
}
"""For each heading the function of pages_torch, _mindspore or _keras that gives the names of its blocks."""


def places(framework):
    """The pages and headings with a block about a framework, without those that are left out."""
    found = [block for block in pages.blocks() if block.framework == framework]
    return {block.place for block in found if not block.begins_with(LEFT_OUT)}


def test_every_block_is_prepared_or_left_out_for_a_reason():
    prepared = {**PAIR, **STARTS, **ALONE, **FRAMEWORKS}
    assert prepared.keys() == places("torch")
    assert MINDSPORE.keys() == places("mindspore")
    assert KERAS.keys() == places("keras")
    for begin, (place, _) in LEFT_OUT.items():
        (block,) = [block for block in pages.blocks() if block.begins_with([begin])]
        assert block.place == place
        ast.parse(block.code)


def test_commands_are_what_a_shell_can_read():
    found = pages.commands()
    assert len(found) > 20
    for page, block in found:
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
        assert done.returncode == 0, f"{page}: {block}{done.stderr}"


@functools.cache
def flags(*command):
    """The flags that the help of a command has; none if there is no such command."""
    program = [sys.executable, "-m", "thinwire", *command, "--help"]
    done = subprocess.run(program, capture_output=True, text=True)
    return frozenset(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", done.stdout))


def test_commands_on_pages_have_flags_that_exist():
    checked = 0
    for page, words in pages.command_lines():
        head = list(itertools.takewhile(str.isidentifier, words[:3]))
        lengths = [each for each in range(1, len(head) + 1) if flags(*head[:each])]
        depth = max(lengths, default=0)
        for word in words[depth:] if depth else ():
            if word in ("--", "|", "&", "&&", ";", "#") or word == "thinwire":
                break
            if word.startswith("--"):
                checked += 1
                assert word.partition("=")[0] in flags(*words[:depth]), f"{page}: {words}"
    assert checked > 100


@pytest.mark.needs("torch")
def test_blocks_of_ranks_run(ranks, tmp_path):
    import pages_torch

    first, second = ranks(2, pages_torch.run, arguments=[str(tmp_path), PAIR, list(LEFT_OUT)])
    assert first == second and len(first) >= len(PAIR)


@pytest.mark.needs("torch", "pyarrow", "safetensors")
def test_blocks_of_one_process_run(ranks, tmp_path):
    import pages_torch

    (ran,) = ranks(1, pages_torch.run, arguments=[str(tmp_path), ALONE, list(LEFT_OUT)])
    assert len(ran) >= len(ALONE)


@pytest.mark.needs("torch", "pyarrow")
def test_blocks_of_the_readme_run(ranks, tmp_path):
    import pages_torch

    (ran,) = ranks(1, pages_torch.run, arguments=[str(tmp_path), STARTS, list(LEFT_OUT)])
    assert len(ran) == len(STARTS)


@pytest.mark.needs("accelerate", "lightning", "ray", "transformers")
def test_blocks_of_other_frameworks_run(ranks, tmp_path):
    import pages_torch

    (ran,) = ranks(1, pages_torch.run, arguments=[str(tmp_path), FRAMEWORKS, list(LEFT_OUT)])
    assert len(ran) >= len(FRAMEWORKS)


@pytest.mark.needs("mindspore")
def test_blocks_of_mindspore_run(ranks, tmp_path):
    file = Path(__file__).with_name("pages_mindspore.py")
    run = rank.load(file, "run")
    (ran,) = ranks(1, run, arguments=[str(tmp_path), MINDSPORE, list(LEFT_OUT)])
    assert len(ran) >= len(MINDSPORE)
