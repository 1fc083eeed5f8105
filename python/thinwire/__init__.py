"""Thinwire: training across machines when the network between them is the bottleneck.

This root imports no framework. `thinwire.torch` and `thinwire.mindspore` are imported by name.

    import thinwire

    group = thinwire.init()                 # a world of one unless a launcher says otherwise
    group.all_reduce(array, average=True)   # NumPy arrays, in place
"""

from thinwire._core import Error, InvalidError, PeerError, Store, __version__
from thinwire.group import Group, init

__all__ = ["Error", "Group", "InvalidError", "PeerError", "Store", "__version__", "init"]
