"""The measurement `jax` of `bench/run.sh` runs, in one short round, and its tables have figures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLAGS = (
    "--networks loopback --frameworks jax --codecs int8 --rounds 1 --overlap-steps 1 --overlap-batch 2"
    " --methods gloo,int8 --steps 2 --every 1 --batch 2 --context 16 --width 16 --blocks 1 --target 9"
)


@pytest.mark.needs("jax", "flax", "optax")
def test_a_short_round_ends_with_tables(tmp_path):
    data = tmp_path / "data.txt"
    data.write_text("the quick brown fox jumps over the lazy dog\n" * 100)
    ended = subprocess.run(
        ["bash", ROOT / "bench/run.sh", "jax", "--data", data, *FLAGS.split()],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert ended.returncode == 0, ended.stderr
    assert "failed" not in ended.stderr, ended.stderr
    for figure in ("| scanned | int8 |", "| unrolled | int8 |", "| gloo | ", "| int8 | "):
        assert figure in ended.stdout, f"{ended.stdout}\n{ended.stderr}"
