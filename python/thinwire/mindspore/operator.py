"""The exchange as one operator of a graph: N gradients in, N averages out, in native code.

MindSpore loads the extension module itself, the very file that Python has imported, and finds the
synchronizer in it by its key. It is one operator for all gradients because independent operators run
in an order that differs between ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import ops

import thinwire
from thinwire import _core

from .signature import Signature

SYMBOL = "thinwire_exchange"


def exchange_operator(parameters: Sequence[ms.Parameter]) -> ops.Custom:
    """Takes one gradient per parameter and `key_tensor`'s result; gives a tuple of as many averages.

    Raises InvalidError where MindSpore does not run on the CPU; the operator itself does for
    gradients of other shapes or dtypes than the parameters', when a graph is compiled.
    """
    require_cpu()
    signature = Signature(parameters)

    def shapes(*found):
        signature.check_shapes(found[:-1])
        return signature.shapes

    def dtypes(*found):
        signature.check_dtypes([each.element_type() for each in found[:-1]])
        return signature.dtypes

    return ops.Custom(f"{_core.__file__}:{SYMBOL}", shapes, dtypes, func_type="aot")


def require_cpu() -> None:
    """Raises InvalidError on devices that operators of this package do not run on."""
    target = ms.get_context("device_target")
    if target != "CPU":
        raise thinwire.InvalidError(
            f"the operator runs on CPU, not on {target} (hint: thinwire.mindspore.exchange "
            "outside of graphs copies through host memory)"
        )


def key_tensor(synchronizer: _core.Synchronizer) -> ms.Tensor:
    """The operator's last input, by which it knows whose gradients these are: int32, one element."""
    return ms.Tensor(np.array([synchronizer.key], np.int32))
