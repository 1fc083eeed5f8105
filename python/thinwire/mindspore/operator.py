"""The exchange as operators of a graph, in native code: one per bucket that starts it, one that ends it.

MindSpore runs an operator when its inputs are there. So the gradients of a bucket set out while
backward computes those of the layers below, and what the ranks' orders are does not matter: buckets
are addressed by number. MindSpore loads the extension module itself, the very file that Python has
imported, and finds the synchronizer in it by its key.
"""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import ops

import thinwire
from thinwire import _core

from .signature import Signature

READY, FINISH = "thinwire_ready", "thinwire_finish"


def ready_operator(parameters: Sequence[ms.Parameter]) -> ops.Custom:
    """Takes the gradients of a bucket's parameters and its key; gives a token, at once.

    Raises InvalidError for gradients of other shapes or dtypes than the parameters', when a graph is
    compiled.
    """
    signature = Signature(parameters)

    def shape(*found):
        signature.check_shapes(found[:-1])
        return (1,)

    def dtype(*found):
        signature.check_dtypes([each.element_type() for each in found[:-1]])
        return ms.int32

    return native(READY, shape, dtype)


def finish_operator(parameters: Sequence[ms.Parameter]) -> ops.Custom:
    """Takes the tokens of all buckets and a key; gives a tuple of one average per parameter."""
    signature = Signature(parameters)
    return native(FINISH, lambda *_: signature.shapes, lambda *_: signature.dtypes)


def native(symbol, shapes, dtypes) -> ops.Custom:
    """A function of the extension module as an operator."""
    return ops.Custom(f"{_core.__file__}:{symbol}", shapes, dtypes, func_type="aot")


def require_cpu() -> None:
    """Raises InvalidError on devices that operators of this package do not run on."""
    target = ms.get_context("device_target")
    if target != "CPU":
        raise thinwire.InvalidError(
            f"the operator runs on CPU, not on {target} (hint: thinwire.mindspore.exchange "
            "outside of graphs copies through host memory)"
        )


def key_tensor(synchronizer: _core.Synchronizer, bucket: int) -> ms.Tensor:
    """An operator's last input, by which it knows whose gradients these are: int32, two elements."""
    return ms.Tensor(np.array([synchronizer.key, bucket], np.int32))
