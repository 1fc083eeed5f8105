"""The examples for MindSpore run, and learn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import launch

pytestmark = pytest.mark.needs("mindspore")
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "python"
DIGITS = ROOT.parent / "shared" / "data" / "mnist10k"


def said(name: str, *arguments: str) -> str:
    """What rank 0 of an example printed; both ranks must have ended well."""
    outcomes = launch.run(2, EXAMPLES / name, arguments=arguments, wait_for_all=False)
    launch.results(outcomes)
    return outcomes[0].stdout


def test_lenet_learns_digits_that_are_made():
    stdout = said("mindspore_lenet.py", "--epochs", "1", "--codec", "int8")
    assert float(re.findall(r"([\d.]+) % of 400 right", stdout)[0]) > 90


def test_a_folder_without_digits_is_named_in_one_line(tmp_path):
    (outcome,) = launch.run(1, EXAMPLES / "mindspore_lenet.py", arguments=["--data", str(tmp_path)])
    last = outcome.stderr.strip().rpartition("\n")[2]
    assert outcome.code == 1
    assert last == f"no *-images-idx3-ubyte.gz in {tmp_path}, expected one"


@pytest.mark.skipif(not DIGITS.is_dir(), reason="no folder ../shared/data/mnist10k")
def test_lenet_learns_digits_that_people_wrote():
    stdout = said("mindspore_lenet.py", "--images", "2000", "--data", str(DIGITS))
    assert float(re.findall(r"([\d.]+) % of 400 right", stdout)[0]) > 60


def test_the_transformer_learns_sums():
    losses = [
        float(each) for each in re.findall(r"loss ([\d.]+)", said("mindspore_transformer.py"))
    ]
    assert len(losses) == 5
    assert losses[-1] < 0.75 * losses[0]
