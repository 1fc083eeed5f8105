"""The exchange as native operators of a graph: one per bucket that starts, and one that finishes.

MindSpore runs an operator once its inputs are computed. The gradients of a bucket are therefore sent
while backward computes those of the layers below. Ranks may run the operators in different orders,
since buckets are addressed by number. MindSpore uses the extension module that Python has already
loaded, and the operators find the synchronizer there by its key.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops

import thinwire
from thinwire import _core

from .signature import Signature

READY, FINISH = "thinwire_ready", "thinwire_finish"


def ready_operator(parameters: Sequence[ms.Parameter]) -> ops.Custom:
    """Makes the operator that takes a bucket's gradients and its key, and returns a token at once.

    Raises InvalidError for gradients whose shapes or dtypes differ from the parameters', when a graph is
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
    """Makes the operator that takes the tokens of all buckets and a key, and returns all averages."""
    signature = Signature(parameters)
    return native(FINISH, lambda *_: signature.shapes, lambda *_: signature.dtypes)


def native(symbol, shapes, dtypes) -> ops.Custom:
    """Returns a function of the extension module as an operator."""
    return ops.Custom(f"{_core.__file__}:{symbol}", shapes, dtypes, func_type="aot")


def python_operator(
    function: Callable[..., Any], inputs: int, shapes: Any, dtypes: Any
) -> ops.Custom:
    """Returns a Python function of `inputs` arrays as an operator, whose results have these shapes
    and dtypes.

    # Errors

    InvalidError where MindSpore does not run on the CPU.
    """
    require_cpu()

    def called(*arrays):
        return function(*arrays)

    # MindSpore counts the operator's inputs in the signature of the function.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    named = [inspect.Parameter(f"array_{i}", kind) for i in range(inputs)]
    setattr(called, "__signature__", inspect.Signature(named))  # noqa: B010
    return ops.Custom(called, shapes, dtypes, func_type="pyfunc")


def require_cpu() -> None:
    """Raises InvalidError on devices where this package's operators do not run."""
    target = ms.get_context("device_target")
    if target != "CPU":
        raise thinwire.InvalidError(
            f"the operator runs on CPU, not on {target} (hint: thinwire.mindspore.exchange "
            "outside of graphs copies through host memory)"
        )


def key_tensor(synchronizer: _core.Synchronizer, bucket: int) -> ms.Tensor:
    """The last input of an operator: two int32, the synchronizer's key and the bucket."""
    return ms.Tensor(np.array([synchronizer.key, bucket], np.int32))
