"""This rank's copy of a model: its parameters, and the same initial values on all ranks.

In some modes, each rank trains an independent copy. One line after the optimizer's step, in the
user's loop, synchronises the copies every few steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from thinwire._core import Group, InvalidError
from thinwire.agreement import agree
from thinwire.arguments import instance, whole
from thinwire.torch.layout import plain
from thinwire.torch.reduction import NATIVE


def trainable(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters that training changes, by plain name.

    # Errors

    InvalidError for anything but a module, if there are no such parameters, or if a parameter is
    sharded or has a dtype that the core does not support.
    """
    instance("model", model, torch.nn.Module)
    named = parameters_of(model)
    found = {name: value for name, value in named.items() if value.requires_grad}
    for name, value in found.items():
        expect_whole(name, value)
    if not found:
        raise InvalidError("the model has no parameter that requires a gradient")
    return found


def expect_whole(name: str, value: torch.Tensor) -> None:
    """Refuses a parameter that is sharded, or of a dtype that the core does not support.

    # Errors

    InvalidError for such a parameter.
    """
    if value.dtype not in NATIVE:
        known = ", ".join(str(dtype) for dtype in NATIVE)
        raise InvalidError(f"{name} is {value.dtype}, expected one of {known}")
    if hasattr(value, "device_mesh"):
        raise InvalidError(
            f"{name} is a {type(value).__name__}, expected a whole parameter (hint: each rank has the "
            "whole model; thinwire.torch.fsdp is for FSDP2)"
        )


def parameters_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the parameters by plain name, in DDP's order, without those of tables on servers."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for prefix, module in model.named_modules():
        for name, value in module.named_parameters(prefix, recurse=False):
            found.setdefault(id(value), (name, value))
    return plain(found.values())


def expect_no_more(group: Group, model: torch.nn.Module, known: Iterable[torch.Tensor]) -> None:
    """Refuses a model that now trains more than the `known` parameters: ranks would drift apart.

    # Errors

    InvalidError for a parameter that was frozen or missing before. The other ranks also fail.
    """
    exchanged = {id(value) for value in known}
    for name, value in parameters_of(model).items():
        if value.requires_grad and id(value) not in exchanged:
            error = InvalidError(
                f"{name} requires a gradient and did not when ranks began alike, so it is not exchanged "
                "(hint: make a new one for the model after requires_grad_)"
            )
            group.abort(str(error))
            raise error


def every_steps(every: int) -> int:
    """Checks the number of steps between two rounds."""
    return whole("every is", every, 1)


@torch.no_grad()
def broadcast(group: Group, tensors: list[torch.Tensor]) -> None:
    """Replaces the tensors of all ranks by those of rank 0, on any device, bit for bit."""
    for tensor in tensors if group.world > 1 else ():
        host = tensor.detach().cpu().contiguous()
        group.broadcast(host.data_ptr(), host.numel() * host.element_size(), 0)
        if host.data_ptr() != tensor.data_ptr():
            tensor.copy_(host)


def begin_alike(group: Group, model: torch.nn.Module, **options: Any) -> None:
    """Gives all ranks the parameters and buffers of rank 0, as DDP does.

    # Errors

    InvalidError on all ranks, before anything has changed, if models or `options` differ between ranks.
    """
    named = parameters_of(model)
    tensors = {**named, **plain(model.named_buffers())}
    frozen = {name for name, value in named.items() if not value.requires_grad}
    described = [
        f"{name} {value.dtype} {list(value.shape)}{' frozen' * (name in frozen)}"
        for name, value in tensors.items()
    ]
    agree([*(f"{name} {value}" for name, value in options.items()), *described], group)
    broadcast(group, [*named.values(), *model.buffers()])
