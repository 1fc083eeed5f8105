"""Parameters that got a gradient since the last step.

In the place of a parameter without one, DDP's bucket has zeros, or what `grad` still has from an earlier
step. The core must not take that for a gradient: what a codec owes of the parameter would be sent with it,
and DDP throws the average away. So backward marks each parameter whose gradient it accumulates, also
under `no_sync`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


class Marks:
    """Marks of parameters by their identity."""

    def __init__(self) -> None:
        self._marked: set[int] = set()

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Marks these parameters from now on."""
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._mark)

    def without(self, parameters: Sequence[torch.Tensor]) -> list[int]:
        """Places of the parameters that are not marked.

        None where no parameter of the model is marked: then gradients come by another way.
        """
        if not self._marked:
            return []
        places = enumerate(parameters)
        return [place for place, each in places if id(each) not in self._marked]

    def clear(self) -> None:
        """Ends a step."""
        self._marked.clear()

    def _mark(self, parameter: torch.Tensor) -> None:
        self._marked.add(id(parameter))
