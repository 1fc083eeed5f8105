"""The state of a synchronizer for a restart, in a form that every checkpoint of PyTorch can contain.

A state dict has one entry per rank, because residuals differ between ranks. The entry is a tuple of
plain values and CPU tensors: `torch.save` writes it unchanged, `torch.load` reads it with
`weights_only=True`, and `torch.distributed.checkpoint` treats a tuple as one value of any size. So
an object that has no state yet can load one.

Law: the sum over ranks of residuals and of momenta is preserved, whatever the number of ranks before and
after.
"""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from thinwire._core import Group, InvalidError, Synchronizer, check_state, codec_name, reshard
from thinwire.agreement import agree, together
from thinwire.torch import exchange
from thinwire.torch.layout import DDP, plain_names

Tensors = dict[str, torch.Tensor]
STEP = "step"
"""Name of the tensor that has the number of the next step."""
PART = "part"
"""Name of the tensor with the number of the part of the gradients that a rank exchanges, and the
number of parts."""


@dataclasses.dataclass(frozen=True)
class Saved:
    """The plan as JSON, the names of the parameters in each bucket, the buckets of the next step if
    they differ, and residuals, momenta and factors by name."""

    plan: str
    tensors: Tensors
    buckets: list[list[str]]
    following: list[list[str]] | None = None


def means_same(first: str, second: str) -> bool:
    """Whether two names mean the same codec."""
    try:
        return codec_name(first) == codec_name(second)
    except InvalidError:  # a state may name a file that is not there any more
        return first == second


def read(sync: Synchronizer) -> tuple[str, Tensors]:
    """The plan of a synchronizer and its tensors, on the CPU."""
    plan, raw = sync.state()
    return plan, unpacked(raw)


def write(sync: Synchronizer, plan: str, tensors: Tensors) -> None:
    """Loads what `read` returned into a synchronizer; a collective call.

    # Errors

    InvalidError on all ranks, before anything has changed, if the state of any rank has a different
    model, codec, feedback or momentum correction, or values that are not finite, or if ranks have
    states of different steps.
    """
    sync.load(plan, packed(tensors))


def packed(tensors: Tensors) -> dict[str, tuple[list[int], bytes]]:
    """Tensors in the form that the core takes."""
    return {name: (list(values.shape), octets(values)) for name, values in tensors.items()}


def unpacked(raw: Mapping[str, tuple[list[int], bytes]]) -> Tensors:
    """Tensors from the form that the core returns."""
    return {name: tensor(shape, values) for name, (shape, values) in raw.items()}


def octets(values: torch.Tensor) -> bytes:
    """The values of a tensor of any dtype, as bytes of f32."""
    found: bytes = values.detach().cpu().float().contiguous().numpy().tobytes()
    return found


def tensor(shape: list[int], values: bytes) -> torch.Tensor:
    """The f32 tensor with these bytes as values."""
    if not values:
        return torch.empty(shape)
    return torch.frombuffer(bytearray(values), dtype=torch.float32).reshape(shape)


def of_rank(group: Group, saved: Saved | None) -> dict[str, tuple[Any, ...]]:
    """Returns the state dict of one rank. Its entry ends with the number of ranks."""
    entry = () if saved is None else (*vars(saved).values(), group.world)
    return {f"rank{group.rank}": entry}


def gathering(steps: int) -> str:
    """Returns the description of the call by which ranks gather their states after `steps`
    steps."""
    return f"the state of all ranks after {steps} step{'s' * (steps != 1)}"


def on_rank_0(group: Group, entries: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Returns the entries of all ranks on rank 0, and an empty dict on other ranks; a collective
    call after `steps` steps."""
    file = io.BytesIO()
    torch.save(dict(entries), file)
    mine = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    sizes = exchange.gathered(group, torch.tensor([mine.numel()]), gathering(steps))
    parts = [torch.empty(size, dtype=torch.uint8) for size in sizes.view(-1).tolist()]
    parts = parts if group.rank == 0 else []
    exchange.to_root(group, parts, mine, 0)
    read = (torch.load(io.BytesIO(part.numpy().data), weights_only=True) for part in parts)
    return {name: entry for part in read for name, entry in part.items()}


def for_ranks(
    group: Group,
    entries: Mapping[str, Any],
    options: Mapping[str, Any],
    part: torch.Tensor | None = None,
) -> Saved | None:
    """Returns this rank's state from a state dict, for a training with these options; a collective
    call.

    `part` is the part of the gradients that this rank exchanges; None means all.

    # Errors

    InvalidError on all ranks, if `for_training` refuses the state of any rank, or if the states
    were not saved together.
    """
    saved = together(group, lambda: for_training(group, entries, options, part))
    agree([f"{'no' if saved is None else 'a'} state of steps that were made"], group)
    try:
        agree([] if saved is None else common(saved), group)
    except InvalidError as error:
        said = str(error).removeprefix("ranks disagree: ")
        raise InvalidError(
            f"the states of ranks were not saved together: {said} (hint: load what all ranks have "
            "saved together)"
        ) from None
    return saved


def common(saved: Saved) -> list[str]:
    """Returns a description of the values that the states of all ranks must have in common."""
    step = saved.tensors.get(STEP, torch.empty(0)).flatten().tolist()
    return [
        f"step {number(step):.0f}" if step else "no step",
        f"parameters in buckets {saved.buckets}, then in {saved.following}",
    ]


def number(step: Sequence[float]) -> float:
    """Returns the number of a step, which a state stores in parts of 24 bits."""
    return functools.reduce(lambda high, low: high * 2.0**24 + low, step, 0.0)


def for_training(
    group: Group,
    entries: Mapping[str, Any],
    options: Mapping[str, Any],
    part: torch.Tensor | None = None,
) -> Saved | None:
    """Returns the state of one rank from a state dict, for a training with these options.

    # Errors

    InvalidError if the dict has no state for that rank, or a state with a different codec,
    feedback, momentum correction or part of the gradients.
    """
    saved = for_rank(group, entries)
    if saved is not None:
        check_part(saved, part)
        check_state(saved.plan, **options)
    return saved


def check_part(saved: Saved, part: torch.Tensor | None) -> None:
    """Refuses a state of a different part of the gradients."""
    found, expected = said_part(saved.tensors.get(PART)), said_part(part)
    if found != expected:
        raise InvalidError(
            f"the state is of {found}, this rank exchanges {expected} (hint: the same within= and "
            "the same ranks on each host as when it was saved, or resume from model and optimizer "
            "alone)"
        )


def said_part(part: torch.Tensor | None) -> str:
    """A description of a part of the gradients."""
    if part is None:
        return "whole gradients"
    place, parts = (part.flatten().tolist() + [0.0, 0.0])[:2]
    return f"part {place + 1:.0f} of {parts:.0f} of each gradient"


def for_rank(group: Group, entries: Mapping[str, Any]) -> Saved | None:
    """The state of one rank from a state dict.

    If a different number of ranks saved it, the dict must have the entries of all ranks that this
    rank continues.

    # Errors

    InvalidError if the dict has no entry for this rank, an entry that is not a state, or entries
    that do not belong together.
    """
    saved = worlds(entries)
    if len(saved) > 1:
        raise InvalidError(
            f"the state has entries of {min(saved)} and of {max(saved)} ranks, expected one number"
        )
    if saved and group.world not in saved:
        return resharded(group, saved.pop(), entries)
    entry = entry_of(group.rank, entries)
    return parsed(f"rank{group.rank}", entry)[0] if entry else None


def resharded(group: Group, world: int, entries: Mapping[str, Any]) -> Saved:
    """Returns the state from which one rank continues after `world` ranks have saved. The sum of
    all residuals is preserved."""
    needed = [f"rank{rank}" for rank in followed(group, world)]
    missing = [name for name in needed if not entries.get(name)]
    if missing:
        raise InvalidError(
            f"the state is of {world} ranks, this job has {group.world}: rank{group.rank} needs "
            f"{', '.join(needed)}, but {missing[0]} is missing (hint: give the entries of all "
            "ranks in one dict, or use thinwire.torch.resharded with torch.distributed.checkpoint)"
        )
    saved = {name: parsed(name, entries[name])[0] for name in needed}
    first = saved["rank0"]
    if PART in first.tensors:
        raise InvalidError(
            f"the state is of {world} ranks under within=, this job has {group.world}: parts of "
            "gradients cannot be divided again (hint: resume from model and optimizer alone; the "
            "residuals are "
            "then lost)"
        )
    for name, other in saved.items():
        if dataclasses.replace(other, tensors=first.tensors) != first:
            raise InvalidError(
                f"plan and buckets of rank0 and {name} in the state are not the same"
            )

    def raw(rank: int) -> dict[str, tuple[list[int], bytes]]:
        return packed(saved[f"rank{rank}"].tensors)

    tensors = reshard(group.rank, group.world, world, raw)
    return dataclasses.replace(first, tensors=unpacked(tensors))


def followed(group: Group, world: int) -> list[int]:
    """Returns those of the `world` old ranks whose entries a rank needs. It always needs rank 0's,
    for the common part."""
    return sorted({0, *range(group.rank, world, group.world)})


def parsed(name: str, entry: tuple[Any, ...]) -> tuple[Saved, int]:
    """An entry, and the number of ranks that saved it."""
    kinds: tuple[Any, ...] = (str, Mapping, (list, tuple), (list, tuple, type(None)), int)
    parts = list(entry) if isinstance(entry, (list, tuple)) else [entry]
    pairs = zip(parts, kinds)
    if len(parts) != len(kinds) or not all(isinstance(part, kind) for part, kind in pairs):
        found = ", ".join(type(part).__name__ for part in parts)
        raise InvalidError(f"the state of {name} is ({found}), expected the result of state_dict")
    *parts, world = parts
    if world < 1:
        raise InvalidError(f"the state of {name} is of {world} ranks, expected 1 or more")
    saved = Saved(*parts)
    for tensor_name, value in saved.tensors.items():
        found = unlike(value)
        if found or not isinstance(tensor_name, str):
            raise InvalidError(
                f"{tensor_name} in the state of {name} is {found or 'a name'}, expected "
                f"{'a tensor of torch.float32' if found else 'a text'}"
            )
    for buckets in (saved.buckets, [] if saved.following is None else saved.following):
        if not all(map(is_bucket, buckets)):
            raise InvalidError(
                f"the state of {name} has parameters in buckets {buckets}, expected lists of names"
            )
    return renamed(saved), world


def unlike(value: Any) -> str:
    """Returns "" for a dense tensor of f32, or of f64, which can hold f32 values; otherwise,
    returns a description of the value."""
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    if value.is_meta:
        return "a tensor without values"
    if value.layout is not torch.strided:
        return f"a tensor of {value.layout}"
    return "" if value.dtype in (torch.float32, torch.float64) else f"a tensor of {value.dtype}"


def is_bucket(names: Any) -> bool:
    """Whether these are the names of a bucket's parameters, and there is at least one."""
    return isinstance(names, (list, tuple)) and all(
        isinstance(each, str) for each in names or [None]
    )


def renamed(saved: Saved) -> Saved:
    """Returns a state with plain names. A compiled model, or an earlier version of Thinwire, saves
    other names."""
    bare = plain_names([name for bucket in saved.buckets for name in bucket], DDP)

    def buckets(given: list[list[str]]) -> list[list[str]]:
        return [[bare.get(name, name) for name in bucket] for bucket in given]

    def key(name: str) -> str:
        kind, _, parameter = name.partition(".")
        return f"{kind}.{bare[parameter]}" if parameter in bare else name

    tensors = {key(name): values for name, values in saved.tensors.items()}
    following = None if saved.following is None else buckets(saved.following)
    return Saved(saved.plan, tensors, buckets(saved.buckets), following)


def worlds(entries: Mapping[str, Any]) -> set[int]:
    """The numbers of ranks that have saved these entries."""
    if not isinstance(entries, Mapping):
        kind = type(entries).__name__
        raise InvalidError(f"the state is a {kind}, expected the result of state_dict")
    return {parsed(name, entry)[1] for name, entry in entries.items() if is_entry(name) and entry}


def is_entry(name: str) -> bool:
    """Whether this is the name of a rank's entry."""
    return isinstance(name, str) and name.startswith("rank") and name[4:].isdecimal()


def entry_of(rank: int, entries: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns the part of a state dict for one rank, or None if the dict has none."""
    if f"rank{rank}" not in entries:
        ranks = ", ".join(filter(is_entry, entries)) or "no rank"
        raise InvalidError(
            f"the state is that of {ranks}, expected rank{rank} (hint: residuals differ between "
            "ranks: save on every rank, or through torch.distributed.checkpoint)"
        )
    return tuple(entries[f"rank{rank}"])
