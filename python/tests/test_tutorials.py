"""The commands of the tutorials run, in their order, and print the lines that the pages show.

Numbers, times and ids may differ. A line that is `...` stands for further ones. Addresses get free
ports, and a long training is made shorter by a number of its page.
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

import launch
import pages

FOLDER = pages.ROOT / "docs/tutorials"
LEFT_OUT = ("pip install",)
LOOKS = ("grep ", "thinwire top ")
"""How commands begin that a reader gives again until the lines are there."""
END = "looked"
SHORTER = {"ddp-thin-link": ("steps, times = 200, []", "steps, times = 8, []")}
"""A text of a page, and what stands for it here."""
TIMEOUT_S = 300


def masked(line: str) -> str:
    """A line without what differs from run to run."""
    line = re.sub(r"^(epoch) \d+(?: from step \d+)?", r"\1", line)
    line = re.sub(r"\b(joined|gone): .*", r"\1", line)
    line = re.sub(r", \d+ of them new\b", "", line)
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


def page(name: str, port: int) -> str:
    """The text of a page with another port."""
    text = (FOLDER / f"{name}.md").read_text()
    if name in SHORTER:
        before, after = SHORTER[name]
        assert text.count(before) == 1
        text = text.replace(before, after)
    return re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", text)


class Shell:
    """A shell in a folder, and what it has printed."""

    def __init__(self, folder: Path, environment: dict[str, str]):
        self.printed = folder / "output"
        with self.printed.open("wb") as file:
            self.process = subprocess.Popen(
                ["bash"],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def give(self, command: str) -> int:
        """Gives a command, and returns where its output begins."""
        begin = self.printed.stat().st_size
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()
        return begin

    def expect(self, command: str, shown: list[str]) -> None:
        """Gives a command, and waits for all lines that the page shows."""
        looks = command.startswith(LOOKS)
        given = f"{command}; echo {END}" if looks else command
        begin, deadline = self.give(given), time.monotonic() + TIMEOUT_S
        missing = {masked(line) for line in shown}
        while missing:
            found = self.printed.read_bytes()[begin:].decode()
            missing -= {masked(line) for line in found.splitlines()}
            lives = self.process.poll() is None and time.monotonic() < deadline
            assert lives, f"no {missing} in:\n{found}"
            if missing and looks and END in found:
                begin = self.give(given)
            time.sleep(0.05)

    def end(self) -> int:
        """Waits for the last commands, and returns how the shell has ended."""
        self.process.stdin.close()
        return self.process.wait(TIMEOUT_S)

    def kill(self) -> None:
        """Ends all processes that the page, or an error, has left behind."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.mark.needs("torch", "torch_geometric")
@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("*.md")))
def test_a_tutorial_shows_what_its_commands_print(name, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "thinwire").write_text(f'#!/bin/sh\nexec {sys.executable} -m thinwire "$@"\n')
    (programs / "thinwire").chmod(0o755)
    (tmp_path / "examples").symlink_to(pages.ROOT / "examples")
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    # The ranks of torchrun meet at a free port.
    added = {"PATH": path, "OMP_NUM_THREADS": "1", "PET_STANDALONE": "1"}
    with launch.reserved_ports(1) as port:
        shell = Shell(tmp_path, {**os.environ, **added})
        try:
            for kind, what, content in parts(page(name, port)):
                if kind == "file":
                    (tmp_path / what).write_text(content)
                else:
                    shell.expect(what, content)
            assert shell.end() == 0
        finally:
            shell.kill()
