"""What becomes of a step in which some rank's gradient is not finite.

The exchange then changes no residual and gives NaN as all averages on all ranks, so each rank knows
from any number of them. A loss scaler wants to see that and to skip the step; without one the
optimizer must not.
"""

from __future__ import annotations

from typing import Any, Literal

import mindspore as ms
import numpy as np
from mindspore import ops

import thinwire

NonFinite = Literal["raise", "nan"]
"""Whether such a step raises InvalidError on all ranks, before anything has changed, or gives NaN."""


def refuse(fault: str | None = None) -> None:
    """Raises the error of a step that is not finite; `fault` describes the gradient, if it is known."""
    because = f" ({fault})" if fault else ""
    error: Any = thinwire.InvalidError(
        f"a gradient of some rank is not finite{because}, no rank has made this step (hint: a lower "
        "learning rate, or amp.DynamicLossScaler in a loop of your own, with exchange or reducer and "
        "non_finite='nan')"
    )
    error.is_everywhere = True
    raise error


def is_everywhere(error: BaseException) -> bool:
    """Whether all ranks raise an error."""
    return getattr(error, "is_everywhere", False)


def finite_operator() -> ops.Custom:
    """Takes one float32, shape (1,), and gives it back; refuses the step if it is NaN. For graphs, too."""

    def finite(sample):
        if np.isnan(sample[0]):
            refuse()
        return sample

    return ops.Custom(finite, (1,), ms.float32, func_type="pyfunc")
