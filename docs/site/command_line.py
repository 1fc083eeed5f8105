"""Directive `command-line`: every command of `thinwire` with its flags, from the help that it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

FLAG = re.compile(r"^ {2,6}(-\S.*?|[<\[][^ ]+[>\]](?:\.\.\.)?)(?: {2,}(.*))?$")


def help_of(words: list[str]) -> str:
    """The help of a command of the package that is documented."""
    command = [sys.executable, "-m", "thinwire", *words, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


def commands(text: str) -> list[str]:
    """The names of the commands in a help."""
    part = re.search(r"^Commands:\n((?:  .*\n)+)", text, re.MULTILINE)
    names = re.findall(r"^  (\w\S*)", part[1], re.MULTILINE) if part else []
    return [name for name in names if name != "help"]


def options(text: str) -> list[str]:
    """The arguments and flags in a help, as reStructuredText; headings part their groups."""
    lines: list[str] = []
    kind = indent = ""
    for line in text.splitlines():
        if heading := re.fullmatch(r"(\w[^:]*):", line):
            kind, indent = heading[1], "| "
            if kind not in ("Commands", "Options", "Arguments"):
                lines += ["", f".. rubric:: {kind}", ""]
        elif kind == "Commands" or not kind:
            continue
        elif flag := FLAG.match(line):
            lines += ["", f".. option:: {flag[1]}", ""]
            indent = "   "
            if flag[2]:
                lines.append(f"   {escaped(flag[2])}")
        elif line.strip().startswith("- "):
            lines += ["", f"   {escaped(line.strip())}"]
        else:
            lines.append(f"{indent}{escaped(line.strip())}" if line.strip() else "")
    return lines


def escaped(text: str) -> str:
    """Text in which no character marks anything up."""
    return re.sub(r"([\\*`|_])", r"\\\1", text)


class CommandLine(SphinxDirective):
    """A section for each command, and for each command of commands."""

    def run(self) -> list[nodes.Node]:
        """The sections."""
        return [self.section([name]) for name in commands(help_of([]))]

    def section(self, words: list[str]) -> nodes.section:
        """The section of a command: what it does, how it is called, its flags, its commands."""
        text = help_of(words)
        title = " ".join(["thinwire", *words])
        about, usage = text.split("\n\nUsage: ", 1)
        section = nodes.section(ids=[title.replace(" ", "-")], names=[title])
        section += nodes.title(text=title)
        section += nodes.paragraph(text=about.replace("\n", " "))
        called = usage.split("\n\n", 1)[0]
        section += nodes.literal_block(text=called, language="text")
        lines = [f".. program:: {title}", "", *options(text)]
        self.state.nested_parse(StringList(lines, title), 0, section)
        section += [self.section([*words, name]) for name in commands(text)]
        return section


def setup(app: Any) -> dict[str, bool]:
    """Registers with Sphinx."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
