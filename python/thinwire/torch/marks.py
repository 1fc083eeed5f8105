"""Marks of parameters that received a gradient since the last step.

For a parameter without a gradient, DDP's bucket contains zeros, or the `grad` of an earlier step.
The core must not treat these values as a gradient: it would add the parameter's residual and send
the sum, but DDP would discard the average. So each parameter is marked when backward accumulates
its gradient, including under `no_sync`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

Look = Callable[[], Callable[[torch.Tensor], None] | None]


class Marks:
    """Marks of parameters by their identity."""

    def __init__(self) -> None:
        self._marked: set[int] = set()
        self._nodes: list[Any] = []

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Marks these parameters from now on."""
        mark = weakref.WeakMethod(self._mark)
        self._nodes += [watch(parameter, mark) for parameter in parameters]

    def without(self, parameters: Sequence[torch.Tensor]) -> list[int]:
        """Returns the indices of the parameters that are not marked.

        The list is empty if no parameter of the model is marked: gradients were then not accumulated.
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


def watch(parameter: torch.Tensor, look: Look) -> Any:
    """Calls the function that `look` returns, unless it is None, before backward adds to the
    gradient of `parameter`.

    Keep the result, autograd's accumulation node, alive. A hook of the tensor itself would also be
    called by `torch.autograd.grad`.
    """
    is_trained = parameter.requires_grad
    # One that is frozen now may be trained later, as in a GAN whose networks take turns.
    node: Any = torch.autograd.graph.get_gradient_edge(parameter.requires_grad_()).node
    parameter.requires_grad_(is_trained)

    def before(gradients: tuple[torch.Tensor | None, ...]) -> None:
        found = look()
        if found is not None and gradients[0] is not None:
            found(node.variable)

    node.register_prehook(before)
    return node
