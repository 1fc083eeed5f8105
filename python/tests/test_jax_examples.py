"""The examples for JAX run and learn, and so do the blocks on its page."""

import re
from pathlib import Path

import pytest

import launch
import rank

pytestmark = pytest.mark.needs("jax", "flax", "optax")

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"
TOKEN = "0123456789abcdef"


def written(folder):
    """A file with a short text."""
    text = folder / "text.txt"
    text.write_text("to be or not to be, that is the question; " * 50)
    return text


def test_the_gpt_learns(tmp_path):
    arguments = ["--data", str(written(tmp_path)), "--steps", "20", "--codec", "int8"]
    arguments += ["--blocks", "1", "--batch", "4", "--context", "32"]
    outcomes = launch.run(2, EXAMPLES / "jax_gpt.py", arguments=arguments)
    launch.results(outcomes)
    losses = [float(each) for each in re.findall(r"loss ([\d.]+)", outcomes[0].stdout)]
    assert losses[-1] < 0.7 * losses[0]
    assert outcomes[1].stdout == ""


def test_a_missing_text_is_said_in_one_line():
    outcomes = launch.run(2, EXAMPLES / "jax_gpt.py", arguments=["--data", "/nowhere.txt"])
    for outcome in outcomes:
        assert outcome.code == 1
        assert outcome.stderr.endswith("cannot read /nowhere.txt: No such file or directory\n")


def test_the_elastic_gpt_learns(tmp_path):
    from thinwire._core import Coordinator

    coordinator = Coordinator("127.0.0.1:0", TOKEN, state=tmp_path / "state")
    env = dict(coordinator.seat(), THINWIRE_MEMBER="new")
    arguments = ["--data", str(written(tmp_path)), "--passes", "3", "--batch", "12"]
    arguments += ["--context", "16", "--width", "16", "--blocks", "1"]
    # Alone, since compiling takes longest: jobs of several ranks have tests of their own.
    outcomes = launch.run(1, EXAMPLES / "jax_elastic.py", arguments=arguments, env=env)
    (said,) = launch.results(outcomes)
    (last,) = said["validation"]
    assert last["step"] == 30 and last["value"] < 2.6, said


def test_blocks_of_pages_run(ranks, tmp_path):
    run = rank.load(Path(__file__).with_name("pages_jax.py"), "run")
    first, second = ranks(2, run, arguments=[str(tmp_path)])
    assert first == second and len(first) > 3
