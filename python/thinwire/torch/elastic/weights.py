"""The weight of this rank's gradients: each backward pass has the weight of its own batch.

The parts of one batch may differ in size by one sample, and accumulated batches may be divided
differently. So gradients are weighted as they are computed, before they are added to `grad`, and
the sum over all ranks equals that of a single rank that computes the whole batches.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


class Weights:
    """Multiplies the gradients of parameters by `factor`."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        """Creates it with a factor of 1, which changes nothing."""
        self.factor = 1.0
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_hook(self._weighed)

    def _weighed(self, gradient: torch.Tensor) -> torch.Tensor | None:
        return None if self.factor == 1.0 else gradient * self.factor
