"""Draws `docs/pictures/ddp.svg` from the table of DDP on CPU ranks in `docs/results.md`.

    python docs/site/diagram.py
    python docs/site/diagram.py FOLDER/1-steps.json   # of `bench/run.sh readme --json FOLDER`

The build of the site refuses a picture that differs from the table.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
PICTURE = DOCS / "pictures/ddp.svg"
HEADING = "## PyTorch DDP on CPU ranks"
ROWS = {
    "DDP over gloo, plain": ("plain", "DDP, plain"),
    "its fp16 hook": ("fp16", "DDP, fp16 hook"),
    "its PowerSGD hook, rank 4": ("powersgd-4@64", "DDP, PowerSGD hook"),
    "thinwire int4": ("int4@1", "Thinwire, int4"),
    "thinwire int3": ("int3@1", "Thinwire, int3"),
    "thinwire powersgd:4": ("powersgd:4@1", "Thinwire, powersgd:4"),
}
"""Rows of the table that are drawn, each with its method of `bench/run.sh ddp` and its label."""
COLUMN = 4
"""Column of the ratio for the GPT at 100 Mbit/s, after that of the name."""
LEFT, RIGHT, ROW = 170, 60, 24


def ratios() -> dict[str, float]:
    """For each label, the time of a step divided by that of computing alone."""
    section = (DOCS / "results.md").read_text().split(HEADING, 1)[1].split("\n## ", 1)[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\|.*\|$", section, re.MULTILINE)
    ]
    found = {row[0]: row[COLUMN] for row in cells}
    return {label: float(found[name]) for name, (_, label) in ROWS.items()}


def measured(lines: Path) -> dict[str, float]:
    """The same of the lines of `bench/run.sh ddp --json`."""
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    compute = statistics.median(each["compute_ms"] for each in records)
    return {
        label: statistics.median(each["step_ms"] for each in records if each["method"] == method)
        / compute
        for method, label in ROWS.values()
    }


def drawn(values: dict[str, float], width: int = 720) -> str:
    """The bars, longest for the slowest; a line marks computing alone."""
    unit = (width - LEFT - RIGHT) / max(values.values())
    height = ROW * len(values) + 58
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        '<text x="10" y="20" font-weight="bold">Time of a step over computing alone: GPT of '
        "10.7 M parameters, two ranks, 100 Mbit/s</text>",
    ]
    for number, (label, value) in enumerate(values.items()):
        top = 34 + ROW * number
        colour = "#2563eb" if label.startswith("Thinwire") else "#9ca3af"
        lines += [
            f'<text x="{LEFT - 8}" y="{top + 14}" text-anchor="end">{label}</text>',
            f'<rect x="{LEFT}" y="{top}" width="{value * unit:.1f}" height="{ROW - 6}" '
            f'fill="{colour}"/>',
            f'<text x="{LEFT + value * unit + 6:.1f}" y="{top + 14}">{value:.2f}</text>',
        ]
    bottom, alone = height - 20, LEFT + unit
    lines += [
        f'<line x1="{alone:.1f}" x2="{alone:.1f}" y1="30" y2="{bottom}" stroke="#dc2626"/>',
        f'<text x="{alone:.1f}" y="{bottom + 14}" text-anchor="middle" fill="#dc2626">'
        "computing alone</text>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def check(app: Any) -> None:
    """Complains about a picture that is older than its table."""
    from sphinx.util import logging

    if PICTURE.read_text() != drawn(ratios()):
        logging.getLogger(__name__).warning("%s is old: run %s", PICTURE, __file__)


def setup(app: Any) -> dict[str, bool]:
    """Registers with Sphinx."""
    app.connect("builder-inited", check)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(drawn(measured(Path(sys.argv[1])) if sys.argv[1:] else ratios()))
