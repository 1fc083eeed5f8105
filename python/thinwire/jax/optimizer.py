"""Synchronous training as an optax optimizer that updates by the average of all ranks' gradients.

A transformation that decides from gradients belongs inside the wrapper, where it sees the same
averages on all ranks. Outside of the wrapper, one rank could skip an exchange that the others make.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import thinwire
from thinwire._core import InvalidError
from thinwire.jax.exchange import Exchange, exchange

try:
    import optax
except ImportError as error:
    raise ImportError(
        f"thinwire.jax.averaged needs optax ({error}) (hint: pip install optax)"
    ) from None

OUTSIDE = {
    "_conditionality.py": ("optax.apply_if_finite", "averaged(optax.apply_if_finite(...), params)"),
    "_accumulation.py": (
        "optax.MultiSteps",
        "accumulate in the step, by jax.lax.scan, then update",
    ),
}
"""Files of optax with a transformation that calls another transformation only in some steps, each
with the transformation's name and a hint."""


class Averaged(optax.GradientTransformationExtraArgs):
    """The optimizer that `averaged` returns; `exchange` has its plan, record and state."""

    exchange: Exchange

    def __new__(cls, optimizer: optax.GradientTransformation, average: Exchange) -> Averaged:
        """Averages by `average`, then updates by `optimizer`."""
        inner = optax.with_extra_args_support(optimizer)

        def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
            refuse_outside()
            return inner.update(average(updates), state, params, **extra)

        made = super().__new__(cls, inner.init, update)
        made.exchange = average
        return made


def averaged(
    optimizer: optax.GradientTransformation,
    params: Any,
    codec: str = "auto",
    group: thinwire.Group | None = None,
    **options: Any,
) -> Averaged:
    """Returns an optimizer that averages gradients over all ranks and then updates as `optimizer` does.

        optimizer = thinwire.jax.averaged(optax.adamw(1e-3), params, codec="int8")

    Its state is the state of `optimizer`, so checkpoints load without Thinwire. The other arguments
    and the errors are those of `thinwire.jax.exchange`. A collective call.

    # Errors

    Also InvalidError for an optimizer that already averages, and from `update` inside of
    `optax.apply_if_finite` or `optax.MultiSteps`, which belong inside `optimizer`.
    """
    if isinstance(optimizer, Averaged):
        raise InvalidError(
            "the optimizer averages already, expected one without thinwire.jax.averaged"
        )
    if not hasattr(optimizer, "init") or not hasattr(optimizer, "update"):
        raise InvalidError(f"the optimizer is a {type(optimizer).__name__}, expected one of optax")
    return Averaged(optimizer, exchange(params, codec, group, **options))


def refuse_outside() -> None:
    """Searches the callers for transformations that let a single rank skip exchanges, and for
    another optimizer that averages.

    # Errors

    InvalidError if a caller is such a transformation.
    """
    update = sys._getframe(1)
    frame: types.FrameType | None = update.f_back
    while frame is not None:
        if frame.f_code is update.f_code:
            raise InvalidError(
                "an optimizer inside of thinwire.jax.averaged averages already, expected one "
                "without thinwire.jax.averaged"
            )
        file = Path(frame.f_code.co_filename)
        if file.name in OUTSIDE and "optax" in file.parts:
            name, hint = OUTSIDE[file.name]
            raise InvalidError(
                f"{name} around thinwire.jax.averaged leaves out exchanges on single ranks, "
                f"expected {name} inside of thinwire.jax.averaged (hint: {hint})"
            )
        frame = frame.f_back
