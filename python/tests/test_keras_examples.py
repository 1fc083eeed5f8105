"""The examples for Keras and TensorFlow run, and learn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import launch

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"


def said(name: str, *arguments: str, env: dict[str, str] | None = None) -> str:
    """What rank 0 of an example printed; both ranks must have ended well."""
    outcomes = launch.run(2, EXAMPLES / name, arguments=arguments, env=env, wait_for_all=False)
    launch.results(outcomes)
    return outcomes[0].stdout


@pytest.mark.needs("keras", "jax")
def test_fit_learns_patterns(tmp_path):
    file = str(tmp_path / "model.keras")
    arguments = ("--codec", "int8", "--save", file)
    stdout = said("keras_fit.py", *arguments, env={"KERAS_BACKEND": "jax"})
    assert float(re.findall(r"([\d.]+) % of 400 right", stdout)[0]) > 90
    assert Path(file).stat().st_size > 10_000


@pytest.mark.needs("tensorflow")
def test_the_loop_learns():
    losses = [float(each) for each in re.findall(r"loss ([\d.]+)", said("tensorflow_loop.py"))]
    assert len(losses) == 5
    assert losses[-1] < 0.5 * losses[0]
