"""Thinwire: training across machines when the network between them is the bottleneck.

This root imports no framework. Import `thinwire.torch`, `thinwire.mindspore` or `thinwire.jax` by name.

    import thinwire

    group = thinwire.init()                 # a world of one unless a launcher says otherwise
    group.all_reduce(array, average=True)   # NumPy arrays, in place
"""

from typing import TYPE_CHECKING

from thinwire import lifetime as _lifetime  # noqa: F401  # exits and forks of this process
from thinwire._core import Store, __version__
from thinwire.errors import Error, InvalidError, InvalidTypeError, PeerError

if TYPE_CHECKING:
    from thinwire.group import Group, init

__all__ = [
    "Error",
    "Group",
    "InvalidError",
    "InvalidTypeError",
    "PeerError",
    "Store",
    "__version__",
    "init",
]


def __getattr__(name: str) -> object:
    # The command `thinwire` imports this file and needs no NumPy, which takes longer than the rest.
    if name not in ("Group", "group", "init"):
        raise AttributeError(f"module 'thinwire' has no attribute '{name}'")
    from importlib import import_module

    group = import_module("thinwire.group")
    found = group if name == "group" else getattr(group, name)
    return globals().setdefault(name, found)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
