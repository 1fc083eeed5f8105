"""Settings of the site: `sphinx-build -W docs target/html`, or `cargo xtask site`."""

import sys
from pathlib import Path

from sphinx.ext.autodoc.mock import _MockObject

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "site"))

project = "Thinwire"
author = "the Thinwire authors"
html_title = "Thinwire"
html_theme = "furo"
html_show_copyright = False
templates_path = []
exclude_patterns = ["site"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "command_line",
    "diagram",
    "docstrings",
    "links",
]
nitpicky = True
smartquotes = False
suppress_warnings = ["config.cache"]

# Anchors of headings as GitHub makes them, where the same pages are read.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# A site needs none of the frameworks: their names are enough for signatures and base classes.
autodoc_mock_imports = [
    "accelerate",
    "dgl",
    "equinox",
    "flax",
    "jax",
    "keras",
    "lightning",
    "mindspore",
    "optax",
    "orbax",
    "pyarrow",
    "ray",
    "safetensors",
    "tensorflow",
    "torch",
    "torch_geometric",
    "transformers",
]
# When they are imported, modules write to registries of JAX and look for its header.
_MockObject.__setitem__ = lambda *_: None
_MockObject.__fspath__ = lambda _: ""
autodoc_member_order = "bysource"
autodoc_typehints = "none"
default_role = "code"
