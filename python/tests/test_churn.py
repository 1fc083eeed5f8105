"""The bench of elastic jobs recognises the lines of the trainers of today."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHURN = ROOT / "bench/churn.py"


def test_a_round_of_a_fault_ends_with_a_step(command):
    data = command.folder / "data.txt"
    data.write_text("the quick brown fox jumps over the lazy dog\n" * 400)
    flags = ["--steps", "100000", "--batch", "6", "--width", "16", "--layers", "1", "--data", data]
    flags += ["--validation-batches", "0", "--codec", "none", "--link", "none"]
    options = ["--thinwire", command.program, "--rounds", "1", "--world", "2", "--spread", "0.1"]
    line = [sys.executable, CHURN, *options, "--", *flags]
    ended = subprocess.run(map(str, line), capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    assert figures["hangs"] == 0 and figures["worst_s"] > 0


def test_churn_reads_what_ranks_of_python_say(monkeypatch):
    from thinwire.elastic.deal import Place
    from thinwire.elastic.job import STEP_ENDED, changed

    monkeypatch.syspath_prepend(CHURN.parent)
    found = importlib.import_module("churn").STEP.search(
        STEP_ENDED % (changed(Place(3, 0, 2), 1), 68, 0.25)
    )
    assert (found["epoch"], found["ranks"], found["after"]) == ("3", "2", "0.25 s")
