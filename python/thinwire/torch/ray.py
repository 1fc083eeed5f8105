"""Ray Train with gradients averaged by Thinwire. In the function that each worker runs:

    model = ray.train.torch.prepare_model(model)
    attached = thinwire.torch.ray.attach(model, codec="int8")
    ...
    attached.save(folder)  # every worker, into the checkpoint that it reports

A run that Ray restarts continues from every rank's state in the checkpoint.
"""

from __future__ import annotations

from typing import Any

import torch

from thinwire.torch.attached import Attached
from thinwire.torch.hook import hook
from thinwire.torch.signature import options_of

try:
    import ray.train
except ImportError as error:
    raise ImportError(
        f'thinwire.torch.ray needs Ray Train ({error}) (hint: pip install "ray[train]")'
    ) from None


@options_of(hook)
def attach(
    model: torch.nn.Module, codec: str = "auto", group: Any = None, **options: Any
) -> Attached:
    """Lets Thinwire average the gradients of `model`, which `prepare_model` has returned.

    Every worker calls it. `codec` and `options` are those of `thinwire.torch.hook`. If Ray has
    restarted from a checkpoint, its states are loaded. With one worker nothing changes. The
    result's `hook` has the plan and the record.

    # Errors

    InvalidError for an unknown codec or algorithm, a factor out of range, a model that is not in
    DDP, or a checkpoint of a different model.
    """
    attached = Attached({"codec": codec, "group": group, **options})
    attached.follow(model)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            attached.load(folder)
    return attached
