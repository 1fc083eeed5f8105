"""Checks of a DDP model: the ranks that it averages over, and options that no hook supports.

DDP passes buckets to a hook, but not the DDP object. So `attach` tells the hook its model;
otherwise, the hook searches for the model at the first bucket.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from thinwire._core import InvalidError

INSTEAD = {
    "FSDPModule": "thinwire.torch.fsdp(model) is for FSDP2",
    "FullyShardedDataParallel": "FSDP2, by fully_shard, with thinwire.torch.fsdp(model)",
    "DataParallel": "DistributedDataParallel, with a process for each device",
}
"""Hints by the names of other wrappers' types, of which some take long to import."""
PYTHON_REDUCER = (
    "torch._dynamo.config.optimize_ddp is 'python_reducer', which gives hooks no buckets, expected "
    "'ddp_optimizer' (hint: torch._dynamo.config.optimize_ddp = True before "
    "DistributedDataParallel)"
)


def unwrapped(model: Any) -> Any:
    """The model without the wrapper of torch.compile."""
    while isinstance(model, torch.nn.Module) and hasattr(model, "_orig_mod"):
        model = model._orig_mod
    return model


def expect_ddp(model: Any) -> DistributedDataParallel:
    """The DDP model in `model`, compiled or not.

    # Errors

    InvalidError for any other model, with a hint.
    """
    bare = unwrapped(model)
    if isinstance(bare, DistributedDataParallel):
        return bare
    hint = "model = torch.nn.parallel.DistributedDataParallel(model)"
    for kind in type(bare).__mro__:
        hint = INSTEAD.get(kind.__name__, hint)
    raise InvalidError(
        f"the model is a {type(bare).__name__}, expected one in DistributedDataParallel (hint: "
        f"{hint})"
    )


def refuse(model: DistributedDataParallel, group: Any) -> None:
    """Refuses a model whose gradients would be averaged wrongly by a hook over the ranks of `group`.

    # Errors

    InvalidError if the ranks differ from the model's, and for DDP options under which the hook does
    not get all gradients.
    """
    delayed = len(getattr(model, "_delay_all_reduce_params", ()))
    if delayed:
        raise InvalidError(
            f"delay_all_reduce_named_params has {delayed} parameter{'s' * (delayed > 1)}, which "
            "DDP averages without its hook, expected none (hint: leave the argument out)"
        )
    if getattr(model, "skip_all_reduce_unused_params", False):
        raise InvalidError(
            "skip_all_reduce_unused_params is True, expected False: DDP would leave out buckets "
            "(hint: find_unused_parameters=True alone)"
        )
    if getattr(model, "_use_python_reducer", False):
        raise InvalidError(PYTHON_REDUCER)
    refuse_other_ranks(model.process_group, group)


def refuse_other_ranks(theirs: dist.ProcessGroup, group: Any) -> None:
    """Refuses a hook over `group` for a model over the process group `theirs`, if their ranks differ.

    If `group` is not a process group of PyTorch, only the number of ranks is compared.
    """
    if group is None and dist.is_initialized():
        group = dist.group.WORLD
    if group is None or group is theirs:
        return
    model, own = ranks(theirs), ranks(group)
    known = model is not None and own is not None
    if model != own if known else size(theirs) != size(group):
        raise InvalidError(
            f"the model averages over {described(theirs)}, but its hook over {described(group)} "
            "(hint: thinwire.torch.attach(model) takes the model's process group)"
        )


def ranks(group: Any) -> list[int] | None:
    """The ranks of a process group, as numbers in the default group; None where PyTorch does not
    know them."""
    try:
        return sorted(dist.get_process_group_ranks(group))
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def size(group: Any) -> int:
    """The number of ranks of a group of any kind."""
    group = getattr(group, "core", getattr(group, "group", group))
    return int(group.size() if isinstance(group, dist.ProcessGroup) else group.world)


def described(group: Any) -> str:
    """The description of a group's ranks for a message."""
    found = ranks(group)
    if found is None:
        return f"{size(group)} ranks"
    return f"ranks {', '.join(map(str, found[:8]))}" + f" … ({len(found)})" * (len(found) > 8)


def refuse_hooked(model: DistributedDataParallel) -> None:
    """Refuses a model that has a communication hook.

    A copy of a model has the original's list of hooks, but DDP does not register them again, so the
    list is ignored.
    """
    name = model._get_ddp_logging_data().get("comm_hook")
    if name is None and any(
        hasattr(each, "_in_backward_optimizers") for each in model.parameters()
    ):
        name = "of an optimizer in backward"
    if name is None:
        return
    for _, state in vars(model).get("_comm_hooks", ())[-1:]:
        name = repr(state) if type(state).__module__.startswith("thinwire.") else name
    raise InvalidError(
        f"the model has a communication hook already, {name}, expected none (hint: DDP takes one "
        "hook)"
    )


def models_of(state: Any) -> list[DistributedDataParallel]:
    """Returns the models whose hook has this `state`. It searches all Python objects, which takes
    about a tenth of a second."""
    kinds: list[type] = [DistributedDataParallel]
    for kind in kinds:
        kinds += kind.__subclasses__()
    found = (each for each in gc.get_referrers(*kinds) if isinstance(each, DistributedDataParallel))
    return [
        model
        for model in found
        if any(theirs is state for _, theirs in vars(model).get("_comm_hooks", ()))
    ]


def divides_by_active(model: DistributedDataParallel) -> bool:
    """Whether sums are divided by the number of ranks that still have inputs, not by the number of
    all ranks.

    This is the case under `model.join(divide_by_initial_world_size=False)`, where the first model
    decides.
    """
    join = getattr(model, "_join_config", None)
    by_all = getattr(model, "_divide_by_initial_world_size", True)
    return join is not None and join.enable and join.is_first_joinable and not by_all
