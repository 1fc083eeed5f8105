"""Every measurement of `bench/run.sh` runs, in one short round, and its table has a figure.

Not among them: `churn`, which has tests of its own; `choice`, `hosts`, `change`, `codecs` and `distortion`,
whose shortest round takes minutes of two cores; `resize`, whose pauses are by the clock; `mindspore`, whose
operator is tested by itself.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TINY = "--batch 4 --width 16 --layers 1 --heads 2 --context 16"
LOOPBACK = "--networks loopback --worlds 2"
# The flags of a short round, and a word of the table that only a measurement puts there.
MEASUREMENTS = {
    "codec": ("--size 1 --codecs int8", "GB/s"),
    "link": ("--sizes 4", "4 B"),
    "collective": (f"{LOOPBACK} --sizes 1 --rounds 1", "|   1 |"),
    "training": (
        f"{LOOPBACK} --codecs int8 --data DATA {TINY} --steps 4 --validation-batches 1"
        " --checkpoint-dir none",
        "|  int8 |",
    ),
    "sync": (
        f"{LOOPBACK} --models lstm --methods int8/gather/tensor/whole --steps 2",
        "| int8/gather/tensor/whole |",
    ),
    "server": (
        "--networks loopback --workers 1 --servers 1 --backups 0 --size 1000000 --runs 1 --rounds 1",
        "| thinwire | 1 | 1 |",
    ),
    "plans": (
        "--networks loopback --steps 2 --rounds 1 --only ^data$ --shares no --batch 4 --data DATA"
        " --model gpt:layers=1,width=16,heads=2,vocabulary=256,positions=16",
        "bytes: equal on ",
    ),
    "failures": ("--failures kill --methods int8 --rounds 1", "| kill -9 | after | "),
    "ddp": (
        f"{LOOPBACK} --models gpt --methods int8 --rounds 1 --batch 2 --steps 2 --loss-steps 2"
        " --data DATA",
        "| int8 | ",
    ),
    "accuracy": (
        "--data DATA --methods none,int8 --network loopback --steps 2 --seeds 1 --models gpt",
        "| int8 | - | ",
    ),
    "modes": ("--slow --methods pair:1 --steps 5 --step-ms 1 --runs 1", "| pair:1 | "),
    "time-to-loss": (
        "--data DATA --methods int8 --networks loopback --seeds 1 --models gpt --size small"
        " --target 5.5 --limit 20",
        "| int8 |",
    ),
}


def test_rows_of_the_readme_have_the_figures_that_were_measured(tmp_path):
    figures = {"fault": "kill", "rounds": 3, "hangs": 0, "median_s": 0.125, "worst_s": 7.0}
    (tmp_path / "5-pauses.json").write_text(f"{json.dumps(figures)}\n")
    (tmp_path / "5.commands").write_text("bench/run.sh churn\n")
    program = [sys.executable, ROOT / "bench/python/readme.py", ROOT / "README.md", tmp_path]
    printed = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    assert printed.count("not measured. README has ") == 5
    kills = (
        "0.12 s after the kill in the median, and 7.00 s after it in the worst of 3 kills. README"
    )
    assert kills in printed
    assert "\n   bench/run.sh churn\n" in printed


def test_the_readme_has_the_figures_of_its_picture(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs/site")
    diagram = importlib.import_module("diagram")
    drawn = diagram.ratios()
    assert (ROOT / "docs/pictures/ddp.svg").read_text() == diagram.drawn(drawn)
    int3, plain = drawn["Thinwire, int3"], drawn["DDP, plain"]
    row = f"{int3:.2f} times as long as computing alone with `int3`, and {plain:.2f} times with raw"
    assert row in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("measurement", MEASUREMENTS)
def test_a_short_round_ends_with_a_table(measurement, command):
    flags, figure = MEASUREMENTS[measurement]
    data = command.folder / "data.txt"
    data.write_text("the quick brown fox jumps over the lazy dog\n" * 400)
    words = [str(data) if word == "DATA" else word for word in flags.split()]
    env = {
        **os.environ,
        "PYTHON": sys.executable,
        "THINWIRE": str(command.program),
        "THINWIRE_BENCH": str(command.program.parent / "thinwire-bench"),
        "SERVER_WIRE": str(command.program.parent / "examples/wire"),
        "THINWIRE_HEARTBEAT_TIMEOUT_S": "60",  # a rank may wait long for a busy core
    }
    ended = subprocess.run(
        ["bash", ROOT / "bench/run.sh", measurement, *words],
        capture_output=True,
        text=True,
        timeout=300,
        env=env,
    )
    assert ended.returncode == 0, ended.stderr
    assert "failed" not in ended.stderr, ended.stderr
    assert figure in ended.stdout, f"{ended.stdout}\n{ended.stderr}"
