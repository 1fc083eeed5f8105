"""Hugging Face Accelerate with gradients averaged by Thinwire.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    thinwire.torch.accelerate.attach(accelerator, model, codec="int8")

`accelerator.save_state` then writes one file per rank with the state of that rank's codec, and
`load_state` reads it; `register_for_checkpointing` would keep only rank 0's state.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from thinwire.torch.attached import Attached
from thinwire.torch.hook import hook
from thinwire.torch.signature import options_of

try:
    from accelerate import Accelerator
except ImportError as error:
    raise ImportError(
        f"thinwire.torch.accelerate needs accelerate ({error}) (hint: pip install accelerate)"
    ) from None

Models = Sequence[torch.nn.Module]


@options_of(hook)
def attach(
    accelerator: Accelerator,
    model: torch.nn.Module,
    codec: str = "auto",
    group: Any = None,
    **options: Any,
) -> Attached:
    """Lets Thinwire average the gradients of `model`, which `accelerator.prepare` has returned.

    Every rank calls it. `codec` and `options` are those of `thinwire.torch.hook`. With one process nothing
    changes. The result's `hook` has the plan and the record.

    # Errors

    InvalidError for an unknown codec or algorithm, a factor out of range, or a model that is not in DDP.
    """
    attached = Attached({"codec": codec, "group": group, **options})
    attached.follow(model)

    def save(models: Models, weights: Any, folder: str) -> None:
        attached.save(place(models, folder))

    def load(models: Models, folder: str) -> None:
        attached.load(place(models, folder))

    def bare(model: torch.nn.Module) -> torch.nn.Module:
        return accelerator.unwrap_model(model, keep_torch_compile=False)

    def place(models: Models, folder: str | os.PathLike[str]) -> Path:
        """The folder itself for the first model, a subfolder for each other one."""
        number = [bare(each) is bare(model) for each in models].index(True)
        return Path(folder, f"thinwire_{number}") if number else Path(folder)

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    return attached
