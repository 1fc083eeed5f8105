"""Ranks that are forked are processes like any other."""

import os
import random
import signal
import sys
import time

import pytest

import launch

pytestmark = pytest.mark.needs("torch")


def describe():
    imported = "torch" in sys.modules
    import numpy
    import torch

    return {
        "imported": imported and torch.__name__ == "torch",
        "leads": os.getpgid(0) == os.getpid(),
        "input": sys.stdin.read(),
        "rank": os.environ["RANK"],
        "token": os.environ.get("THINWIRE_TOKEN"),
        "colour": os.environ.get("COLOUR"),
        "drawn": [hash("word"), random.random(), numpy.random.random()],
    }


def leave():
    sys.exit(3 if os.environ["RANK"] == "0" else "no more")


def sleep_with_a_child():
    if (child := os.fork()) == 0:
        time.sleep(10 * launch.PATIENCE_S)
        os._exit(0)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def test_forked_ranks_have_a_place_a_group_and_numbers_of_their_own(ranks):
    found = ranks(2, describe, env=lambda rank: {"THINWIRE_TOKEN": f"secret {rank}"})
    drawn = [rank.pop("drawn") for rank in found]
    common = {"imported": True, "leads": True, "input": "", "colour": None}
    assert found == [common | {"rank": f"{rank}", "token": f"secret {rank}"} for rank in range(2)]
    assert all(one != other for one, other in zip(*drawn))


def test_what_libraries_may_read_at_their_import_is_there_before(ranks):
    (found,) = ranks(1, describe, env={"COLOUR": "red"})
    assert not found["imported"] and found["colour"] == "red"


def test_exits_and_signals_are_those_of_the_rank():
    first, second = launch.run(2, leave)
    assert (first.code, second.code) == (3, 1)
    assert second.stderr == "no more\n"


def test_what_a_forked_rank_has_started_ends_with_it():
    (outcome,) = launch.run(1, sleep_with_a_child)
    assert outcome.code == -signal.SIGKILL
    child, deadline = int(outcome.stdout), time.monotonic() + launch.PATIENCE_S
    while launch.runs(child):
        assert time.monotonic() < deadline, "its child has outlived it"
        time.sleep(0.01)
