"""Registers a hook with a DDP model, over the ranks of the model's own process group.

    model = DistributedDataParallel(model, process_group=pair)
    hook = thinwire.torch.attach(model, codec="int8")

The returned hook has the plan, the times of the last step, and the state for a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire.arguments import Codecs
from thinwire.torch import ddp
from thinwire.torch.hook import Hook, hook
from thinwire.torch.signature import options_of


@options_of(hook)
def attach(
    model: torch.nn.Module, codec: Codecs = "auto", group: Any = None, **options: Any
) -> Hook:
    """Registers a communication hook that averages gradients over the process group of `model`.

    Call it once, after `DistributedDataParallel(...)` and before the first step, on every rank of the
    model's process group. `torch.compile` may come before or after. The returned hook has
    `exchange_plan()`, `record()` and, for a restart, `state_dict()` and `load_state_dict()`.

    Args:
        model: a DistributedDataParallel.
        group: None for the model's process group; otherwise a group of the same ranks, such as
            `thinwire.init(link="100mbit")`.
        named_parameters: by default those of the model.
        codec, options: as in `thinwire.torch.hook`, which describes them.

    # Errors

    InvalidError for a model that is not in DDP or has a communication hook, for DDP options under
    which a hook does not get all gradients, and for a `group` of other ranks; also the errors of
    `thinwire.torch.hook`.
    """
    wrapped = ddp.expect_ddp(model)
    given = of_model(wrapped, {"codec": codec, "group": group, **options})
    made, function = hook(**given)
    register(wrapped, made, function)
    return made


def of_model(model: DistributedDataParallel, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of `hook`, with process group and names from the model where none are given.

    # Errors

    InvalidError for a model that has a hook already, or whose gradients a hook with these options
    would average wrongly.
    """
    given = {"named_parameters": model.module.named_parameters(), **options}
    if given.get("group") is None:
        given["group"] = model.process_group
    ddp.refuse(model, given["group"])
    ddp.refuse_hooked(model)
    return given


def register(model: DistributedDataParallel, made: Hook, function: Any) -> None:
    """Registers the hook with a model."""
    model.register_comm_hook(made, function)
    made.follow(model)
