"""The modules that FSDP2 shards, and whose gradients it reduces.

FSDP2 calls a reduce-scatter with one packed tensor. The tensor has a row for every rank, with the
padded shards of all parameters that have a gradient, one after the other. Residuals belong to
parameters, so this module finds out which parameters these are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from thinwire._core import InvalidError
from thinwire.torch.layout import plain_names


def sharded(model: torch.nn.Module) -> dict[str, Any]:
    """Returns the modules that `fully_shard` was called on, by name.

    # Errors

    InvalidError if this PyTorch's FSDP2 does not support custom communication.
    """
    from torch.distributed import fsdp as torch_fsdp

    FSDPModule: Any = getattr(torch_fsdp, "FSDPModule", None)
    if not hasattr(FSDPModule, "set_custom_reduce_scatter"):
        raise InvalidError(
            f"PyTorch {torch.__version__} has no FSDP2 with custom communication, expected 2.9 or "
            "later"
        )
    modules = model.named_modules()
    units = {name: module for name, module in modules if isinstance(module, FSDPModule)}
    return {name: unit for name, unit in units.items() if not is_replicated(unit)}


def is_replicated(unit: Any) -> bool:
    """Whether a module's parameters are only replicated, not sharded, on all their meshes."""
    groups = param_groups(unit)
    return bool(groups) and all(world_of(group) is None for group in groups)


def param_groups(unit: Any) -> list[Any]:
    """The parameters of a module that FSDP2 exchanges together; PyTorch 2.9 has at most one such group."""
    state = unit._get_fsdp_state()
    found = getattr(state, "_fsdp_param_groups", None)
    if found is None:
        found = [state._fsdp_param_group]
    return [group for group in found if group is not None]


def world_of(group: Any) -> int | None:
    """Returns the number of ranks over which a group of parameters is sharded, or None if it is not
    sharded."""
    return getattr(group.mesh_info, "shard_mesh_size", None)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A sharded parameter: its name in the model, FSDP2's own object, and the number of its shards."""

    name: str
    sharded: Any
    world: int

    @property
    def key(self) -> int:
        """The core's number for the parameter, the same on all ranks and in every run."""
        return number(self.name)

    @property
    def shape(self) -> list[int]:
        """The shape of the residual: one padded shard for every rank."""
        return [self.world, *self.sharded.padded_sharded_param_size]

    @property
    def elements(self) -> int:
        """The number of elements of a padded shard."""
        found: int = self.sharded.padded_sharded_param_size.numel()
        return found


def parameters(model: torch.nn.Module, units: Iterable[Any]) -> dict[Any, Parameter]:
    """Returns the parameters of sharded modules, by FSDP2's own objects. Names do not include the
    parts that wrappers add.

    # Errors

    InvalidError if one of them is not in `model`.
    """
    places = {id(module): name for name, module in model.named_modules()}
    found: dict[Any, tuple[str, int]] = {}
    for group in (group for unit in units for group in param_groups(unit)):
        for each in group.fsdp_params:
            info = each._module_info
            if id(info.module) not in places:
                raise InvalidError(
                    f"parameter {info.param_name} of a {type(info.module).__name__} is sharded "
                    f"together with {type(model).__name__}, but is not a part of it (hint: pass "
                    "the whole model)"
                )
            place = places[id(info.module)]
            name = f"{place}.{info.param_name}" if place else info.param_name
            found[each] = name, world_of(group) or 1
    plain = plain_names(name for name, _ in found.values())
    return {each: Parameter(plain[name], each, world) for each, (name, world) in found.items()}


def number(name: str) -> int:
    """The core's number for a name, the same on all ranks and in every run."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def reduced(parameters: Mapping[Any, Parameter], elements: int) -> list[Parameter]:
    """Returns those of `parameters` that FSDP2 is reducing now; `elements` is the expected total
    number of elements per rank.

    # Errors

    InvalidError for parameters of another model.
    """
    found = [parameters.get(each) for each in packed()]
    known = [each for each in found if each is not None]
    if len(known) < len(found) or sum(each.elements for each in known) != elements:
        raise InvalidError(
            f"FSDP2 reduces gradients of {len(found)} parameters and {elements} elements per rank, "
            f"but only {len(known)} of these parameters are known (hint: call thinwire.torch.fsdp "
            "after all fully_shard)"
        )
    return known


def packed() -> list[Any]:
    """Returns the parameters whose gradients FSDP2 is reducing, in the order in which it has packed
    them. Parameters without a gradient are not included.

    The reduce-scatter gets only the packed tensor. The function that packed it is above this one on
    the stack, and its local variables still have the parameters.

    # Errors

    InvalidError if there is no such function, because residuals must not be matched to parameters
        by a guess.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "foreach_reduce" and "fsdp_params" in frame.f_locals:
            return list(frame.f_locals["fsdp_params"])
        frame = frame.f_back
    raise InvalidError(
        f"PyTorch {torch.__version__} does not say which parameters it reduces gradients of, "
        "expected a call by FSDP2 of PyTorch 2.9 to 2.15"
    )
