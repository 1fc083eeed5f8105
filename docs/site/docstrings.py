"""Docstrings of the package, which are Markdown with sections of arguments, as reStructuredText."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from sphinx.ext.autodoc.mock import _MockObject
from sphinx.ext.napoleon import Config, GoogleDocstring

# A stand-in for a framework's class may be part of a union, as the class itself.
_MockObject.__ror__ = lambda self, other: self

ARGUMENTS = ("class", "exception", "function", "method")
"""Kinds of objects with sections; a property's "Number: of what" is no section."""


def marked(lines: list[str]) -> list[str]:
    """The lines with a `::` before every indented block that follows an empty line."""
    marked: list[str] = [prose(line) for line in lines[:1]]
    inside = None
    for before, line in pairwise(lines):
        depth = len(line) - len(line.lstrip())
        if line.strip() and inside is not None and depth <= inside:
            inside = None
        if inside is None and line.strip() and not before.strip():
            above = next((each for each in reversed(marked) if each.strip()), "")
            outer = len(above) - len(above.lstrip())
            if depth >= outer + 4:
                marked += [" " * outer + "::", ""]
                inside = outer
        marked.append(prose(line) if inside is None else line)
    return marked


def prose(line: str) -> str:
    """A line of text with the marks of reStructuredText in place of Markdown's."""
    line = re.sub(r"^# (.*)", r".. rubric:: \1", line)
    line = re.sub(r"`([^`]+)`(?=\w)", r"`\1`\\ ", line)
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(part if part.startswith("`") else part.replace("*", r"\*") for part in parts)


def convert(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Converts one docstring in place."""
    converted = marked(lines)
    if what in ARGUMENTS:
        converted = GoogleDocstring(converted, Config(), app, what, name, thing, options).lines()
    lines[:] = converted


def setup(app: Any) -> dict[str, bool]:
    """Registers with Sphinx."""
    app.connect("autodoc-process-docstring", convert)
    return {"parallel_read_safe": True}
