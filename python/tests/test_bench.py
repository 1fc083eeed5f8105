"""Every measurement of `bench/run.sh` runs in a short round, and its table has a figure for Thinwire."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TINY = "--steps 4 --batch 4 --width 16 --layers 1 --validation-batches 1 --checkpoint-dir none"
MEASUREMENTS = {
    "codec": ("--size 1", "int8"),
    "codecs": ("", "topk"),
    "link": ("--size 4", "MB/s"),
    "collective": ("--networks loopback --worlds 2 --sizes 1 --rounds 1", "thinwire"),
    "training": (f"--networks loopback --worlds 2 --codecs int8 --data DATA {TINY}", "int8"),
    "sync": ("--networks loopback --worlds 2 --models many --methods int8/ring/tensor/whole --steps 2", "int8"),
    "ddp": ("--networks loopback --worlds 2 --models cnn --methods int8 --rounds 1 --batch 4 --steps 2 --loss-steps 2", "int8"),
    "failures": ("--failures kill --methods int8 --rounds 1", "kill"),
}


@pytest.mark.parametrize("measurement", MEASUREMENTS)
def test_a_short_round_ends_in_a_table(measurement, command):
    flags, row = MEASUREMENTS[measurement]
    data = command.folder / "data.txt"
    data.write_text("the quick brown fox jumps over the lazy dog\n" * 400)
    words = [str(data) if word == "DATA" else word for word in flags.split()]
    env = {**os.environ, "PYTHON": sys.executable, "THINWIRE": str(command.program)}
    ended = subprocess.run(
        ["bash", ROOT / "bench/run.sh", measurement, *words],
        capture_output=True, text=True, timeout=300, env=env,
    )
    assert ended.returncode == 0, ended.stderr
    assert "failed" not in ended.stderr, ended.stderr
    assert row in ended.stdout, ended.stdout + ended.stderr
