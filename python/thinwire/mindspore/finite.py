"""The outcome of a step in which some rank's gradient is not finite.

The exchange then changes no residual and returns NaN for all averages on all ranks. So each rank
recognises such a step by any one number of the averages. A loss scaler must see the NaN and skip
the step. Without a scaler, the optimizer must not see it.
"""

from __future__ import annotations

from typing import Any, Literal

import mindspore as ms
import numpy as np
from mindspore import ops

import thinwire

NonFinite = Literal["raise", "nan"]
"""The effect of such a step: "raise" raises InvalidError on all ranks, before anything has changed;
"nan" returns NaN."""


def refuse(fault: str | None = None) -> None:
    """Raises the error of a step with gradients that are not finite; `fault` describes the
    gradient, if known."""
    because = f" ({fault})" if fault else ""
    error: Any = thinwire.InvalidError(
        f"a gradient of some rank is not finite{because}, so no rank has made this step (hint: a "
        "lower learning rate, or amp.DynamicLossScaler in a loop of your own, with exchange or "
        "reducer and non_finite='nan')"
    )
    error.is_everywhere = True
    raise error


def is_everywhere(error: BaseException) -> bool:
    """Whether all ranks raise an error."""
    return getattr(error, "is_everywhere", False)


def finite_operator() -> ops.Custom:
    """Makes an operator that takes one float32 of shape (1,) and returns it, and refuses the step
    if it is NaN. The operator also works in graphs."""

    def finite(sample):
        if np.isnan(sample[0]):
            refuse()
        return sample

    return ops.Custom(finite, (1,), ms.float32, func_type="pyfunc")
