"""FSDP2 with compressed communication, against plain FSDP2 over gloo."""

from __future__ import annotations

import hashlib
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

import launch

pytestmark = pytest.mark.needs("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "python" / "torch_fsdp.py"
STEPS = 12
# Less than the minute after which a rank gives up by itself.
LOST_WITHIN_S = 50.0


def test_without_a_codec_it_is_plain_fsdp(ranks: Any) -> None:
    """The same parameters after training, for f32, bf16 and f16 gradients, over either backend."""
    plain, *ours = ranks(2, uncompressed)[0]
    for kind, one in itertools.product(range(3), ours):
        assert apart(plain[kind], one[kind]) <= [1e-6, 1e-3, 1e-3][kind]


def uncompressed() -> list[list[list[float]]]:
    """Parameters of plain FSDP2, then with codec none over gloo and over thinwire."""
    import torch

    dist = joined("gloo")
    groups = [dist.group.WORLD, dist.new_group(backend="thinwire")]
    kinds = [None, torch.bfloat16, torch.float16]
    return [
        [whole(trained(kind, codec, group=group)[0]) for kind in kinds]
        for codec, group in ((None, groups[0]), ("none", groups[0]), ("none", groups[1]))
    ]


def test_training_with_codecs_goes_as_without(ranks: Any) -> None:
    """The loss falls to where it falls without, and all ranks have the same parameters to the bit."""
    both = ranks(2, compressed)
    assert both[0] == both[1]
    digests = [digest for _, digest in both[0].values()]
    assert len(set(digests)) == len(digests), "a codec changed nothing"
    plain, _ = both[0].pop("plain")
    for name, (loss, _) in both[0].items():
        assert loss < 0.9 * 1.35 and abs(loss - plain) < 0.01 * plain, (
            f"{name}: {loss}, plain {plain}"
        )


def compressed() -> dict[str, tuple[float, str]]:
    """Mean loss at the end and a digest of the parameters as they are computed with."""
    joined("gloo")
    codecs = {
        "plain": (None, None),
        "int8": ("int8", None),
        "int4": ("int4", None),
        "gathered int8": ("int8", "int8"),
        "gathered bf16": ("bf16", "bf16"),
    }
    found = {}
    for name, (codec, gather) in codecs.items():
        model, _, loss = trained(None, codec, gather)
        found[name] = loss, gathered(model)
    return found


def test_what_rounding_loses_comes_back(ranks: Any) -> None:
    """Constant gradients: the mean of what arrives tends to the exact one, as 1 over the steps."""
    ranks(2, fed_back)


def fed_back() -> None:
    """The same gradient again and again: that of a product with constants."""
    import torch
    from torch.distributed.fsdp import fully_shard

    from thinwire._core import InvalidError
    from thinwire.torch.fsdp import ReduceScatter, fsdp
    from torch_models import Experts

    dist = joined("gloo")
    experts = fully_shard(Experts({"a": (50, 40)}))
    exchange = fsdp(experts, codec="int4")
    source = torch.randn(50, 40, generator=torch.Generator().manual_seed(dist.get_rank()))
    exact = source / 2
    dist.all_reduce(exact)
    total, errors = torch.zeros(50, 40), []
    for step in range(1, 33):
        experts.zero_grad()
        experts({"a": source}).backward()
        total += experts.a.grad.full_tensor()
        errors.append(float((total / step - exact).abs().max()))
    assert errors[0] > 0.01 and errors[31] < errors[0] / 16
    output, reduce = torch.zeros(1000), ReduceScatter(exchange, "")
    with pytest.raises(InvalidError, match="does not say which parameters"):
        reduce(output, torch.zeros(2000), dist.group.WORLD, dist.ReduceOp.SUM)


def test_a_state_goes_on_as_if_never_interrupted(ranks: Any) -> None:
    """Residuals through torch.save and through torch.distributed.checkpoint, bit for bit."""
    with tempfile.TemporaryDirectory() as folder:
        for first, saved, stored, forgotten in ranks(2, resumed, arguments=[folder]):
            assert first == saved == stored != forgotten


def test_stochastic_rounding_goes_on_with_its_next_numbers(ranks: Any) -> None:
    """A run that forgets how often it has drawn repeats its numbers."""
    for first, saved, forgotten in ranks(2, redrawn):
        assert first == saved != forgotten


def redrawn() -> list[list[float]]:
    """Parameters of one run, of one that was interrupted, and of one that forgot its counts."""
    joined("gloo")
    codec = "int8:stochastic"
    found = [whole(trained(None, codec, "int8", steps=2 * STEPS)[0])]
    model, exchange, _ = trained(None, codec, "int8")
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    state = exchange.state_dict()
    for restore in (lambda exchange: exchange.load_state_dict(state), lambda exchange: None):
        again = trained(None, codec, "int8", weights=weights, restore=restore, skip=STEPS)[0]
        found.append(whole(again))
    return found


def resumed(folder: str) -> list[list[float]]:
    """Parameters of one run, of two that were interrupted, and of one that forgot its residuals."""
    import torch
    import torch.distributed.checkpoint as checkpoint

    joined("gloo")
    found = [whole(trained(None, "int4", steps=2 * STEPS)[0])]
    model, exchange, _ = trained(None, "int4")
    state = exchange.state_dict()
    assert all(tensor.abs().sum() > 0 for _, tensor in next(iter(state.values()))[0].values())
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    file = Path(folder) / next(iter(state))
    torch.save(state, file)
    checkpoint.save({"exchange": exchange, "model": model.state_dict()}, checkpoint_id=folder)

    def load(exchange: Any) -> None:
        exchange.load_state_dict(torch.load(file, weights_only=True))

    def load_distributed(exchange: Any) -> None:
        checkpoint.load({"exchange": exchange}, checkpoint_id=folder)

    for restore in (load, load_distributed, lambda exchange: None):
        found.append(whole(trained(None, "int4", weights=weights, restore=restore, skip=STEPS)[0]))
    exchange.load_state_dict({file.name: ({}, 2, "int4")})
    assert all(not tensor.any() for _, tensor in exchange.state_dict()[file.name][0].values())
    again = trained(None, "int4", weights=weights, restore=load, skip=STEPS, restore_late=True)[0]
    assert whole(again) == found[0], "a state that is loaded between steps counts from there"
    return found


def test_gradients_are_divided_as_asked(ranks: Any) -> None:
    """A divisor of the user's, and sums that FSDP2 divides itself."""
    for wanted, summed in ranks(2, divided):
        assert wanted < 1e-6 and summed < 1e-6


def divided() -> list[float]:
    """How far gradients are from the default ones times 2/3, and from the default ones."""
    from thinwire.torch.fsdp import fsdp

    joined("gloo")
    found = []
    for change in (
        lambda model: None,
        lambda model: model.set_gradient_divide_factor(3.0),
        lambda model: model.set_force_sum_reduction_for_comms(True),
    ):
        model = sharded()
        fsdp(model, codec="none")
        for unit in (model, model[0], model[2]):
            change(unit)
        model(batches(1)[0]).square().mean().backward()
        gradients = (parameter.grad.full_tensor().view(-1) for parameter in model.parameters())
        found.append([value for one in gradients for value in one.tolist()])
    default, wanted, summed = found
    return [apart([value * 2 / 3 for value in default], wanted), apart(default, summed)]


def test_shards_on_a_mesh_with_replicas_train(ranks: Any) -> None:
    """HSDP, 2 times 2 ranks: the all-reduce between replicas stays PyTorch's."""
    found = ranks(4, replicated)
    assert all(one == found[0] for one in found)
    exact, ours = found[0]
    assert apart(exact, ours) < 1e-3


def replicated() -> list[list[float]]:
    """Parameters without and with int8."""
    from thinwire._core import InvalidError
    from thinwire.torch import group as groups

    dist = joined("gloo")
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    for shards, expected in ((mesh["shards"], dist.get_rank() // 2 * 2 + 0.5), (None, 1.5)):
        assert averaged(shards) == expected, (
            "a model on a mesh of some ranks is averaged over these"
        )
    with pytest.raises(InvalidError, match=r"rank \d of 4 in the group, but rank \d of 2 "):
        averaged(mesh["shards"], group=groups.of())
    return [whole(trained(None, codec, mesh=mesh)[0]) for codec in (None, "int8")]


def averaged(mesh: Any, group: Any = None) -> float:
    """The gradient of a parameter where every rank has given its own number."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    from thinwire.torch.fsdp import fsdp
    from torch_models import Experts

    model = fully_shard(Experts({"a": (4,)}), mesh=mesh)
    fsdp(model, codec="none", group=group)
    model({"a": torch.full((4,), float(dist.get_rank()))}).backward()
    return model.a.grad.full_tensor().mean().item()


def test_accumulated_and_unused_gradients_are_reduced(ranks: Any) -> None:
    """Steps without communication, and a parameter that gets no gradient in some steps."""
    ranks(2, irregular)


def irregular() -> None:
    """Every other step accumulates; two do without the second of two heads."""
    import torch
    from torch.distributed.fsdp import fully_shard

    from thinwire.torch.fsdp import fsdp

    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.first = torch.nn.Linear(32, 33), torch.nn.Linear(33, 7)
            self.second = torch.nn.Linear(33, 7)

        def forward(self, data: Any, both: bool) -> Any:
            hidden = self.trunk(data).tanh()
            return self.first(hidden) + (self.second(hidden) if both else 0)

    dist, models = joined("gloo"), []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(Heads())
        fully_shard(models[-1].trunk)
        fully_shard(models[-1])
    exchange = fsdp(models[1], codec="none")
    torch.manual_seed(dist.get_rank())
    for step in range(6):
        data = torch.randn(8, 32)
        for model in models:
            model.set_requires_gradient_sync(step % 2 == 1)
            model(data, step not in (2, 3)).square().mean().backward()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(one.grad.to_local(), other.grad.to_local(), atol=1e-6)
    places = exchange.state_dict()[f"rank{dist.get_rank()}"][0]
    assert {name: count for name, (count, _) in places.items()} == {
        f"{layer}.{kind}": 2 if layer == "second" else 3
        for layer in ("trunk", "first", "second")
        for kind in ("weight", "bias")
    }


def test_mistakes_are_said(ranks: Any) -> None:
    """A model that is not sharded, codecs that cannot, states of others."""
    ranks(2, mistaken)


def mistaken() -> None:
    """Calls with an error each, and what it says."""
    import torch
    from torch.distributed._composable.replicate_with_fsdp import replicate
    from torch.distributed.fsdp import fully_shard

    from thinwire._core import InvalidError
    from thinwire.torch.fsdp import fsdp

    dist = joined("gloo")
    with pytest.raises(InvalidError, match="call fully_shard"):
        fsdp(torch.nn.Linear(2, 2))
    with pytest.raises(InvalidError, match="call fully_shard"):
        fsdp(replicate(torch.nn.Linear(2, 2)))
    model = sharded()
    for codec in ("auto", "powersgd:4", "intsgd"):
        with pytest.raises(InvalidError, match=f"'{codec}' needs whole gradients"):
            fsdp(model, codec=codec)
    with pytest.raises(InvalidError, match="unknown codec 'zip'"):
        fsdp(model, codec="zip")
    for by_name in ({"*": "int8"}, lambda name: "int8"):
        with pytest.raises(InvalidError, match="expected the name of one codec: FSDP2 reduces"):
            fsdp(model, codec=by_name)
    with pytest.raises(InvalidError, match="model is 3, expected Module"):
        fsdp(3)
    for codec in ("topk:0.5", "auto", "int4"):
        with pytest.raises(InvalidError, match=f'gather_codec is "{codec}", expected one of none'):
            fsdp(model, gather_codec=codec)
    with pytest.raises(InvalidError, match="seed is -1"):
        fsdp(model, seed=-1)
    exchange = fsdp(model)
    with pytest.raises(InvalidError, match="module '' exchanges by Thinwire already"):
        fsdp(model)
    with pytest.raises(InvalidError, match="that of rank7, expected rank"):
        exchange.load_state_dict({"rank7": ({},)})
    rank, fine = f"rank{dist.get_rank()}", torch.zeros(2, 33)
    for entry, text in (
        (({},), "has 1 parts"),
        (({"0/12": (1, torch.zeros(12))}, 2), "residuals of modules, as earlier versions saved it"),
        (({"attic.bias": (1, fine)}, 2, "int8"), "no sharded parameter of that name"),
        (({"0.bias": (1, fine)}, 3, "int8"), "of 3 ranks, this job has 2"),
        (({"0.bias": (1, fine)}, 2, "int4"), "of codec int4, expected int8"),
        (({"0.bias": (1, fine[:, 1:])}, 2, "int8"), r"has shape \[2, 32\], expected \[2, 33\]"),
        (({"0.bias": (1, fine.log())}, 2, "int8"), "parameter 0.bias is not finite"),
        (({"0.bias": fine}, 2, "int8"), "not a pair, expected a count and a residual"),
        (({"0.bias": (-1, fine)}, 2, "int8"), "count of parameter 0.bias is -1"),
    ):
        with pytest.raises(InvalidError, match=text):
            exchange.load_state_dict({rank: entry})
    # What is wrong on one rank is refused on all.
    broken = fine.log() if dist.get_rank() == 1 else fine
    with pytest.raises(InvalidError, match="parameter 0.bias is not finite"):
        exchange.load_state_dict({rank: ({"0.bias": (1, broken)}, 2, "int8")})
    for name in ("int8", "int8:nearest"):
        exchange.load_state_dict({rank: ({"0.bias": (1, fine)}, 2, name)})
    first, second = (torch.nn.Linear(2, 2) for _ in range(2))
    fully_shard([first, second])
    with pytest.raises(InvalidError, match="parameter weight of a FSDPLinear is sharded together"):
        fsdp(second)


def test_a_lost_rank_is_an_error_in_backward() -> None:
    """At once, not when it gives up."""
    outcomes = launch.run(2, bereft)
    assert outcomes[1].code == 7
    assert outcomes[0].code == 0, launch.report(outcomes[0])
    assert outcomes[0].result < LOST_WITHIN_S


def bereft() -> float:
    """Rank 1 ends before its second backward."""
    import os

    import torch

    from thinwire._core import PeerError
    from thinwire.torch.fsdp import fsdp

    dist = joined("thinwire")
    model = sharded()
    fsdp(model)
    model(torch.ones(2, 32)).sum().backward()
    loss = model(torch.ones(2, 32)).sum()
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        # Rank 0's forward needs this rank's part too.
        store.wait(["forward of rank 0"])
        os._exit(7)
    store.set("forward of rank 0", "done")
    started = time.monotonic()
    with pytest.raises(PeerError, match="rank 1"):
        loss.backward()
    return time.monotonic() - started


def test_the_example_learns() -> None:
    """examples/python/torch_fsdp.py, two ranks."""
    arguments = ["--steps", "40", "--width", "32", "--blocks", "1", "--gather-codec", "bf16"]
    outcomes = launch.run(2, EXAMPLE, arguments=arguments, wait_for_all=False)
    launch.results(outcomes)
    losses = [float(line.split()[-1]) for line in outcomes[0].stdout.splitlines()]
    assert len(losses) == 3 and losses[-1] < 0.8 * losses[0]


def joined(backend: str) -> Any:
    """torch.distributed, initialised."""
    import torch
    import torch.distributed as dist

    import thinwire.torch  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group(backend)
    return dist


def sharded(kind: Any = None, group: Any = None, mesh: Any = None) -> Any:
    """The same small model every time, sharded; gradients are reduced as `kind`."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 65), torch.nn.Tanh(), torch.nn.Linear(65, 33), torch.nn.Linear(33, 10)
    )
    if mesh is None and group is not None:
        mesh = DeviceMesh.from_group(group, "cpu")
    for unit in (model[0], model[2], model):
        fully_shard(unit, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=kind))
    return model


def trained(
    kind: Any,
    codec: str | None,
    gather_codec: str | None = None,
    *,
    group: Any = None,
    mesh: Any = None,
    steps: int = STEPS,
    weights: Any = None,
    restore: Any = None,
    restore_late: bool = False,
    skip: int = 0,
) -> tuple[Any, Any, float]:
    """A model after some steps of gradient descent, its exchange, and the last loss of all ranks."""
    import torch.distributed as dist

    from thinwire.torch.fsdp import fsdp

    model, exchange = sharded(kind, group, mesh), None
    if codec is not None:
        exchange = fsdp(model, codec, gather_codec)
    for batch in batches(steps)[:2] if restore_late else []:
        descended(model, batch)
    if weights is not None:
        for parameter, saved in zip(model.parameters(), weights, strict=True):
            parameter.data.copy_(saved)
    if restore is not None:
        restore(exchange)
    for batch in batches(steps + skip)[skip:]:
        loss = descended(model, batch)
    dist.all_reduce(loss)
    return model, exchange, loss.item() / dist.get_world_size()


def batches(steps: int) -> list[Any]:
    """What this rank sees."""
    import torch
    import torch.distributed as dist

    generator = torch.Generator().manual_seed(dist.get_rank())
    return [torch.randn(16, 32, generator=generator) for _ in range(steps)]


def descended(model: Any, batch: Any) -> Any:
    """One step; returns the loss before it."""
    import torch

    model.zero_grad()
    loss = (model(batch) - batch[:, :10]).square().mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(parameter.grad, alpha=-0.1)
    return loss.detach()


def whole(model: Any) -> list[float]:
    """All parameters, unsharded, exactly."""
    import torch

    return torch.cat([one.full_tensor().detach().view(-1) for one in model.parameters()]).tolist()


def gathered(model: Any) -> str:
    """A digest of the parameters as this rank computes with them."""
    digest = hashlib.sha256()
    for unit in (model, model[0], model[2]):
        unit.unshard()
        for parameter in unit.parameters(recurse=unit is not model):
            digest.update(parameter.detach().numpy().tobytes())
    for parameter in model[3].parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def apart(first: list[float], second: list[float]) -> float:
    """The largest difference."""
    return max(abs(a - b) for a, b in zip(first, second, strict=True))


def overflow():
    """Steps of which the second has a gradient on one rank that int4 does not take, and the warnings."""
    import warnings

    import torch

    from thinwire.torch.fsdp import fsdp

    dist = joined("gloo")
    model = sharded()
    exchange, finite = fsdp(model, codec="int4"), []
    width = next(model.parameters()).shape[1]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(3):
            model.zero_grad()
            factor = 1e36 if step == 1 and dist.get_rank() == 1 else 1.0
            (model(torch.ones(2, width)).sum() * factor).backward()
            gradients = [each.grad.full_tensor() for each in model.parameters()]
            finite.append([bool(each.isfinite().all()) for each in gradients])
        _, tensors = zip(*exchange.state_dict()[f"rank{dist.get_rank()}"][0].values())
    owed = all(bool(each.isfinite().all()) for each in tensors)
    return finite, owed, [str(each.message) for each in said if "codec int4" in str(each.message)]


def test_a_gradient_that_a_codec_does_not_take_is_said_once(ranks):
    for (first, second, third), owed, said in ranks(2, overflow):
        assert all(first) and not any(second) and all(third) and owed
        (text,) = said
        assert text.startswith("a gradient of ") and "NaN on all ranks" in text and "hint" in text
