"""Options of PyG's loaders that `Loader` takes because scripts have them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from thinwire._core import InvalidError
from thinwire.arguments import shown

WORKERS = (
    *("num_workers", "persistent_workers", "prefetch_factor", "worker_init_fn"),
    *("multiprocessing_context", "timeout", "pin_memory_device", "filter_per_worker"),
)
"""Options of worker processes, which this loader does not have."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "subgraph_type": ("directional",),
    "directed": (True,),
    "disjoint": (False,),
    "is_sorted": (False, True),
    "temporal_strategy": ("uniform",),
    **dict.fromkeys(("time_attr", "input_time", "input_id", "custom_cls"), (None,)),
    **dict.fromkeys(("neighbor_sampler", "transform_sampler_output"), (None,)),
    **dict.fromkeys(("sampler", "batch_sampler", "collate_fn", "generator"), (None,)),
}
"""Options with the values under which they change nothing."""
HINTS = {
    "generator": "seed=, equal on all ranks",
    "collate_fn": "transform=",
    "sampler": "input_nodes=",
    "batch_sampler": "input_nodes= and batch_size=",
    "disjoint": "PyG's NeighborLoader over thinwire.torch.graph.pyg.stores",
    "time_attr": "PyG's NeighborLoader over thinwire.torch.graph.pyg.stores",
}
_said = False


def check_others(options: Mapping[str, Any]) -> None:
    """Accepts options that change nothing; logs once that threads, not worker processes, load
    batches.

    # Errors

    InvalidError for an option that is unknown or would change the content of batches.
    """
    global _said
    for name, value in options.items():
        if name in WORKERS:
            if value and not _said:
                _said = True
                text = f"{name} is not needed: threads of this process load batches (threads=)"
                warnings.warn(text, stacklevel=4)
        elif name not in NEUTRAL:
            raise InvalidError(f"a loader has no argument {name}")
        elif getattr(value, "value", value) not in NEUTRAL[name]:
            hint = f" (hint: {HINTS[name]})" if name in HINTS else ""
            expected = " or ".join(shown(neutral) for neutral in NEUTRAL[name])
            raise InvalidError(f"{name} is {shown(value)}, expected {expected}{hint}")
