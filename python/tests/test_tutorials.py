"""The commands of the tutorials run, in their order, and print the lines that the pages show.

Numbers, times and ids may differ. A line that is `...` stands for further ones. Two tutorials are left out:
that of DDP takes minutes, and the reader of that about spot machines waits before killing a process.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pages

FOLDER = pages.ROOT / "docs/tutorials"
LEFT_OUT = ("pip install",)
TIMEOUT_S = 300


def masked(line: str) -> str:
    """A line without what differs from run to run."""
    line = re.sub(r"^(epoch) \d+(?: from step \d+)?", r"\1", line)
    line = re.sub(r"\b(joined|gone): .*", r"\1", line)
    line = re.sub(r"\d[\d\s.,]*", "# ", line)
    return re.sub(r"\s+", " ", re.sub(r"# [mµ]?s\b", "# s", line)).strip()


def parts(text: str):
    """The files and commands of a page, in their order: a command with the lines that it shows."""
    for before, kind, block in re.findall(
        r"([^\n]*)\n\n```(py|console)\n(.*?)```", text, re.DOTALL
    ):
        name = re.search(r"^Save this as `([^`]+)`", before)
        if kind == "py" and name:
            yield "file", name[1], block
        for command, shown in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE):
            if kind == "console" and not command.startswith(LEFT_OUT):
                yield "command", command, [line for line in shown.splitlines() if line != "..."]


def wait_for(shown: list[str], output: Path, begin: int, shell: subprocess.Popen) -> None:
    """Waits until all lines are there."""
    deadline = time.monotonic() + TIMEOUT_S
    missing = {masked(line) for line in shown}
    while missing:
        found = output.read_bytes()[begin:].decode()
        missing -= {masked(line) for line in found.splitlines()}
        assert shell.poll() is None and time.monotonic() < deadline, f"no {missing} in:\n{found}"
        time.sleep(0.05)


@pytest.mark.needs("torch", "torch_geometric")
@pytest.mark.parametrize("name", ["graph-parts", "recommender"])
def test_a_tutorial_shows_what_its_commands_print(name, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "thinwire").write_text(f'#!/bin/sh\nexec {sys.executable} -m thinwire "$@"\n')
    (programs / "thinwire").chmod(0o755)
    (tmp_path / "examples").symlink_to(pages.ROOT / "examples")
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    output = tmp_path / "output"
    with output.open("wb") as file:
        shell = subprocess.Popen(
            ["bash"],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        for kind, what, content in parts((FOLDER / f"{name}.md").read_text()):
            if kind == "file":
                (tmp_path / what).write_text(content)
                continue
            begin = output.stat().st_size
            shell.stdin.write(f"{what}\n".encode())
            shell.stdin.flush()
            wait_for(content, output, begin, shell)
        shell.stdin.close()
        shell.wait(TIMEOUT_S)
    finally:
        # With the processes that an error has left behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
