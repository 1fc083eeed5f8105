"""Links that leave the site: to files of the repository, which must exist, and to listed addresses."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from sphinx.util import logging

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
REPOSITORY = "https://github.com/thinwire/thinwire"
RELATIVE = re.compile(r"(?<=\]\()(\.\.?/[^)#\s]*)(#[^)\s]*)?(?=\))")
EXTERNAL = re.compile(r"(?<=\]\()https?://[^)\s]+(?=\))")
LISTED = DOCS / "site/external-links.txt"
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)

logger = logging.getLogger(__name__)


def listed() -> set[str]:
    """The addresses of the list, each of which stands after the date of its last check."""
    lines = LISTED.read_text().splitlines()
    return {line.split()[1] for line in lines if line and not line.startswith("#")}


def into_repository(app: Any, page: str, source: list[str]) -> None:
    """Turns links to files outside of `docs` into addresses of the repository."""
    folder = (DOCS / page).parent

    def address(found: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / found[1]))
        if path.is_relative_to(DOCS):
            return found[0]
        if not path.exists():
            logger.warning("no file %s", found[1], location=page)
        kind = "tree" if path.is_dir() else "blob"
        return f"{REPOSITORY}/{kind}/main/{path.relative_to(ROOT)}{found[2] or ''}"

    prose = CODE.sub("", source[0])
    for url in sorted(set(EXTERNAL.findall(prose)) - listed()):
        logger.warning("%s is not in %s", url, LISTED.relative_to(ROOT), location=page)
    source[0] = RELATIVE.sub(address, source[0])


def check_other_pages(app: Any) -> None:
    """Checks the links of pages that are not part of the site."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("*/*/README.md")]:
        prose = CODE.sub("", path.read_text())
        for url in sorted(set(EXTERNAL.findall(prose)) - listed()):
            logger.warning("%s is not in %s", url, LISTED.relative_to(ROOT), location=str(path))
        for target in re.findall(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)", prose):
            if not (path.parent / target).exists():
                logger.warning("no file %s", target, location=str(path))


def setup(app: Any) -> dict[str, bool]:
    """Registers with Sphinx."""
    app.connect("builder-inited", check_other_pages)
    app.connect("source-read", into_repository)
    return {"parallel_read_safe": True}
