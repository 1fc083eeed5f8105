"""The examples for Keras and TensorFlow run, and learn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import launch

TOKEN = "0123456789abcdef"
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


@pytest.mark.needs("keras", "tensorflow")
def test_ranks_that_come_and_go_learn_patterns(tmp_path):
    from thinwire._core import Coordinator

    coordinator = Coordinator("127.0.0.1:0", TOKEN, state=tmp_path / "state")
    env = dict(coordinator.seat(), THINWIRE_MEMBER="new", KERAS_BACKEND="tensorflow")
    arguments = ("--codec", "int8", "--epochs", "2")
    (outcome,) = launch.run(1, EXAMPLES / "keras_elastic.py", arguments=arguments, env=env)
    launch.results([outcome])
    steps, accuracy = re.findall(r"(\d+) steps, ([\d.]+) % of 400 right", outcome.stdout)[0]
    assert int(steps) == 50 and float(accuracy) > 90


@pytest.mark.needs("tensorflow")
def test_the_loop_learns():
    losses = [float(each) for each in re.findall(r"loss ([\d.]+)", said("tensorflow_loop.py"))]
    assert len(losses) == 5
    assert losses[-1] < 0.5 * losses[0]
