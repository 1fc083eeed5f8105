"""The ranks of the other tests: they meet, end in time, and say why they failed."""

import os
import signal
import socket
import subprocess
import time

import pytest

import launch


def place(suffix=""):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return [int(os.environ[name]) for name in names] + [os.environ.get("COLOUR"), suffix]


def bind_both_ports():
    for port in (int(os.environ["MASTER_PORT"]) + offset for offset in (0, 1)):
        with socket.create_server(("127.0.0.1", port)):
            pass


def fail_on_rank_1():
    if os.environ["RANK"] == "1":
        raise ValueError("rank 1 has had enough")
    time.sleep(10 * launch.PATIENCE_S)


def hang_with_a_child():
    child = subprocess.Popen(["sleep", f"{10 * launch.PATIENCE_S}"])
    print(child.pid, flush=True)
    child.wait()


def kill_itself():
    os.kill(os.getpid(), signal.SIGTERM)


def test_each_rank_knows_its_place(ranks):
    assert ranks(2, place, env={"COLOUR": "red"}, arguments=["!"]) == [
        [0, 2, 0, 2, "red", "!"],
        [1, 2, 1, 2, "red", "!"],
    ]


def test_environment_may_differ_per_rank(ranks):
    colours = [place[4] for place in ranks(2, place, env=lambda rank: {"COLOUR": f"{rank}"})]
    assert colours == ["0", "1"]


def test_reserved_ports_are_free_for_a_rank(ranks):
    ranks(1, bind_both_ports)


def test_script_answers_with_its_last_line(ranks, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import json, sys\nprint('talk')\nprint(json.dumps(sys.argv[1:]))\n")
    assert ranks(2, script, arguments=["--steps", 3]) == [["--steps", "3"]] * 2


def test_failure_of_one_rank_ends_all_and_is_shown(ranks):
    with pytest.raises(AssertionError, match="ValueError: rank 1 has had enough") as raised:
        ranks(2, fail_on_rank_1)
    assert "rank 0 ended with SIGKILL" in str(raised.value), "it was not waited for"


def test_hanging_rank_shows_where_and_takes_its_children_along():
    (outcome,) = launch.run(1, hang_with_a_child, timeout=6)
    assert outcome.code != 0 and "in hang_with_a_child" in outcome.stderr
    deadline = time.monotonic() + launch.PATIENCE_S
    while launch.runs(int(outcome.stdout)):
        assert time.monotonic() < deadline, "its child has outlived it"
        time.sleep(0.01)


def test_signal_is_a_negative_code():
    (outcome,) = launch.run(1, kill_itself)
    assert outcome.code == -signal.SIGTERM and "SIGTERM" in launch.report(outcome)


def test_function_inside_another_is_refused():
    with pytest.raises(ValueError, match="not a function at the top of its file"):
        launch.run(1, lambda: None)
