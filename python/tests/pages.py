"""The blocks of Python on the pages for users, and how a rank runs them.

Blocks under one heading share their names, and run in their order. Of a diff the new lines run. A line
that is `...` stands for what a reader has there: the preparation of the heading may say what that is.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(str(each.relative_to(ROOT)) for each in ROOT.glob("docs/*.md")))
LEFT_OUT = re.compile(r"^\.\.\.[ ]*(?:#.*)?$", re.MULTILINE)
FRAMEWORKS = {"docs/jax.md": "jax", "docs/keras-tensorflow.md": "keras"}
"""Pages about one framework."""
BETWEEN = "..."
"""The name of a function of the names so far, which is called for every line that is `...`."""


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of Python; `heading` is the one above it."""

    page: str
    heading: str
    code: str

    @property
    def place(self) -> str:
        """Page and heading."""
        return f"{self.page} > {self.heading}"

    @property
    def first(self) -> str:
        """Its first line."""
        return self.code.partition("\n")[0]

    def begins_with(self, any_of: Iterable[str]) -> bool:
        """Whether its first line begins with one of these."""
        return self.first.startswith(tuple(any_of))

    @property
    def framework(self) -> str:
        """The framework that it is about."""
        if self.page in FRAMEWORKS:
            return FRAMEWORKS[self.page]
        found = re.search(r"mindspore|(?<=thinwire\.)(?:jax|keras)\b", self.code)
        return found[0] if found else "torch"


def blocks() -> list[Block]:
    """All blocks of Python of all pages."""
    return [block for page in PAGES for block in of_page(page, (ROOT / page).read_text())]


def of_page(page: str, text: str) -> Iterable[Block]:
    """The blocks of a page."""
    heading, kind, lines = "", None, []
    for line in text.splitlines():
        if kind is None and line.startswith("#"):
            heading = line.strip("# ")
        if line.startswith("```") and kind is None:
            kind, lines = line[3:].strip(), []
        elif line.startswith("```"):
            code = "\n".join(lines)
            if kind == "diff":
                code = "\n".join(each[1:] for each in lines if not each.startswith("-"))
            if kind in ("python", "diff") and not code.startswith("let "):
                yield Block(page, heading, code)
            kind = None
        else:
            lines.append(line)


def commands() -> list[tuple[str, str]]:
    """The indented blocks of commands of all pages, each with its page."""
    indented = re.compile(r"(?<=\n\n)(?: {4}.*\n)+")
    begin = re.compile(r" {4}([A-Z_]+=|thinwire |export |torchrun |cargo |pip |kill )")
    return [
        (page, block)
        for page in PAGES
        for block in indented.findall((ROOT / page).read_text())
        if begin.match(block)
    ]


def command_lines() -> Iterable[tuple[str, list[str]]]:
    """The words after `thinwire` wherever a page has such a command, each with its page."""
    files = [ROOT / "README.md", ROOT / "bench/README.md", *(ROOT / "docs").rglob("*.md")]
    for file in sorted(files):
        text = file.read_text().replace("\\\n", " ")
        for code in re.findall(r"`([^`\n]+)`|^(?: {4}|\$ )(.*)$", text, re.MULTILINE):
            for found in re.split(r"(?:^|[ /])thinwire (?=[a-z])", "".join(code))[1:]:
                yield str(file.relative_to(ROOT)), found.split()


def run(
    framework: str, prepared: Mapping[str, Callable[[], dict[str, Any]]], left_out: Collection[str]
) -> list[str]:
    """Runs the blocks under the headings that are prepared, and returns their first lines."""
    ran, names, place = [], {}, None
    for block in blocks():
        if (
            block.framework != framework
            or block.place not in prepared
            or block.begins_with(left_out)
        ):
            continue
        if block.place != place:
            names, place = prepared[block.place](), block.place
        parts = LEFT_OUT.split(block.code)
        for number, part in enumerate(parts):
            exec(compile(part, f"{block.place}: {block.first}", "exec"), names)
            if number + 1 < len(parts) and BETWEEN in names:
                names[BETWEEN](names)
        ran.append(block.first)
    return ran
