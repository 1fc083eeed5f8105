"""Hosts of several ranks under the hook: two hosts of two ranks are four processes of this machine."""

import functools
import os
import signal
import time
from datetime import timedelta

import pytest

import launch

pytestmark = pytest.mark.needs("torch")

WORLD = 4
CLONE_NEWNET = 0x40000000
LIMIT_S = 50.0
LOSSY = ["int8", "int4:stochastic", "topk:0.1", "powersgd:2", "auto"]


def on_hosts(*hosts):
    """Says, as torchrun would, which host each rank is on; and begins."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    os.environ["GROUP_RANK"] = str(hosts[dist.get_rank()])
    return dist


def trained(name, steps, codec="none", within="host", accumulate=1, dtype=None, **options):
    """Trains with DDP alone and with the hook: the difference, and a hash of the parameters."""
    import torch

    import thinwire.torch
    from torch_models import Training, digest, weights, without_hook, wrapped

    dtype = dtype and getattr(torch, dtype)
    expected = without_hook(name, steps, accumulate, dtype, **options)
    model = wrapped(name, dtype=dtype, **options)
    hook = thinwire.torch.attach(model, codec, within=within, warmup_steps=0)
    training = Training(name, model).run(steps, accumulate)
    return {
        "difference": (expected - weights(model)).abs().max().item(),
        "digest": digest(model),
        "fell": training.fell(),
        "codecs": [each["codec"] for each in hook.exchange_plan().get("assignments", [])],
        "sent": sum(each["sent_bytes"] for each in hook.record().get("buckets", [])),
    }


def uneven():
    """Ranks that finish their data at different times, even on one host, against DDP alone."""
    import torch.distributed as dist

    import thinwire.torch
    from torch_models import Training, digest, weights, wrapped

    trainings = [Training("mlp", wrapped("mlp")) for _ in range(2)]
    thinwire.torch.attach(trainings[1].model, "none", within="host")
    for training in trainings:
        with training.model.join():
            training.run(3 + dist.get_rank())
    first, second = (weights(training.model) for training in trainings)
    difference = (first - second).abs().max().item()
    return {"difference": difference, "digest": digest(trainings[1].model)}


def two_models():
    """Two models in one backward, each with a hook of its own, against DDP alone."""
    import thinwire.torch
    from torch_models import Training, digest, weights, wrapped

    found = []
    for hooked in (False, True):
        first, second = (Training("mlp", wrapped("mlp")) for _ in range(2))
        for training in (first, second) if hooked else ():
            thinwire.torch.attach(training.model, "none", within="host")
        for _ in range(5):
            first.optimizer.zero_grad()
            second.optimizer.zero_grad()
            (first.loss() + 2 * second.loss()).backward()
            first.optimizer.step()
            second.optimizer.step()
        found.append(second.model)
    difference = (weights(found[0]) - weights(found[1])).abs().max().item()
    return {"difference": difference, "digest": digest(found[1])}


def on_some_ranks():
    """A hook on a model of two of four ranks, then a process group of all."""
    import torch
    import torch.distributed as dist

    import thinwire.torch
    from torch_models import wrapped

    pair = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        thinwire.torch.attach(wrapped("mlp", process_group=pair), within="host")
    everybody = dist.new_group(timeout=timedelta(seconds=10))
    rank = torch.tensor(dist.get_rank())
    dist.all_reduce(rank, group=everybody)
    return rank.item()


def all_ways():
    """Every way of DDP on two hosts of two ranks, and on others, in one job."""
    dist = on_hosts(0, 0, 1, 1)
    results = {name: trained(name, 20) for name in ("mlp", "cnn", "gpt")}
    results |= {f"lossy {codec}": trained("gpt", 40, codec) for codec in LOSSY}
    results["bfloat16"] = trained("mlp", 10, dtype="bfloat16")
    results["float16"] = trained("mlp", 10, dtype="float16")
    results["accumulation"] = trained("mlp", 10, accumulate=3)
    results["unused"] = trained("branches", 10, find_unused_parameters=True)
    results["unused lossy"] = trained("branches", 10, "int8", find_unused_parameters=True)
    results["two dtypes"] = trained("mixed", 10)
    results["static"] = trained("mixed", 10, static_graph=True)
    results["views"] = trained("cnn", 10, gradient_as_bucket_view=True)
    groups = [dist.new_group(ranks) for ranks in ([0, 3], [1, 2])]
    mine = groups[dist.get_rank() in (1, 2)]
    results["process groups"] = trained("mlp", 10, within=mine)
    results["uneven inputs"] = uneven()
    results["two models"] = two_models()
    results["some ranks"] = on_some_ranks()
    on_hosts(0, 0, 0, 0)
    results["one host"] = trained("mlp", 10, "int8")
    on_hosts(0, 1, 2, 3)
    results["one rank each"] = trained("mlp", 10)
    dist.destroy_process_group()
    return results


@functools.cache
def every_way():
    return launch.results(launch.run(WORLD, all_ways, wait_for_all=False))


@pytest.mark.parametrize(
    "way",
    [
        *["mlp", "cnn", "gpt", "accumulation", "unused", "views"],
        *["uneven inputs", "two models", "process groups", "one host", "one rank each"],
    ],
)
def test_none_equals_ddp_on_every_host(way):
    results = [result[way] for result in every_way()]
    assert max(result["difference"] for result in results) <= 1e-6
    assert len({result["digest"] for result in results}) == 1


def test_ranks_without_the_hook_make_process_groups_with_those_that_have_it():
    assert [result["some ranks"] for result in every_way()] == [6] * WORLD


@pytest.mark.parametrize(
    ("way", "most"), [("bfloat16", 2e-2), ("float16", 1e-3), ("two dtypes", 2e-2), ("static", 2e-2)]
)
def test_short_dtypes_are_averaged_as_exactly_as_ddp_does(way, most):
    results = [result[way] for result in every_way()]
    assert max(result["difference"] for result in results) <= most
    assert len({result["digest"] for result in results}) == 1


@pytest.mark.parametrize("codec", [*LOSSY, "unused"])
def test_lossy_codecs_train_and_ranks_end_bit_identical(codec):
    way = "unused lossy" if codec == "unused" else f"lossy {codec}"
    results = [result[way] for result in every_way()]
    assert len({result["digest"] for result in results}) == 1
    if codec != "unused":
        assert all(result["fell"] for result in results)
        assert codec == "auto" or codec in results[0]["codecs"]
        whole = every_way()[0]["gpt"]["sent"]
        assert codec == "auto" or results[0]["sent"] < whole


def residuals(hook, rank):
    """The residuals of a rank's parts, each as one row."""
    tensors = hook.state_dict()[f"rank{rank}"][1]
    owed = {key: each for key, each in tensors.items() if key.startswith("residual.")}
    return {key.removeprefix("residual."): each.flatten() for key, each in owed.items()}


def laws():
    """The laws of error feedback, of skipped steps and of states, with what each rank has seen."""
    import torch

    import thinwire.torch
    from thinwire.torch.parts import part_shape
    from torch_models import Training, digest, wrapped

    dist = on_hosts(0, 0, 1, 1)
    rank, seen = dist.get_rank(), {}

    # What was averaged and what is owed after it are what was given.
    model = torch.nn.Linear(33, 21)
    shapes = {name: part_shape(each, 2) for name, each in model.named_parameters()}
    model = torch.nn.parallel.DistributedDataParallel(model)
    hook = thinwire.torch.attach(model, "int8", within="host", warmup_steps=0)
    generator = torch.Generator().manual_seed(rank)
    given = torch.zeros(21, 33, dtype=torch.float64)
    averaged = torch.zeros_like(given)
    for step in range(6):
        model.zero_grad()
        if step:  # after DDP's own buckets are made
            factors = torch.randn(21, 33, generator=generator)
            model(torch.zeros(1, 33))  # prepares the reducer
            loss = (model.module.weight * factors).sum() + model.module.bias.sum()
        else:
            loss = model(torch.randn(4, 33, generator=generator)).square().sum()
        loss.backward()
        if step:
            given += factors
            averaged += model.module.weight.grad
        else:
            first = {name: each.clone() for name, each in residuals(hook, rank).items()}
    dist.all_reduce(given)
    owed = residuals(hook, rank)["weight"] - first["weight"]
    rows = [torch.empty_like(owed) for _ in range(WORLD)]
    dist.all_gather(rows, owed)
    owed = torch.cat([rows[0] + rows[2], rows[1] + rows[3]])[: given.numel()].view(given.shape)
    seen["feedback"] = (averaged + owed - given / WORLD).abs().max().item()
    seen["part"] = shapes["weight"], list(residuals(hook, rank)["weight"].shape)

    # A NaN on rank 1 is in the part of rank 0 alone: no group may keep anything of the step.
    seen["skipped"] = {}
    for codec in ("int8", "topk:0.1", "powersgd:2"):
        model = wrapped("mlp")
        hook = thinwire.torch.attach(model, codec, within="host", warmup_steps=0)
        training = Training("mlp", model).run(3)
        before = hook.state_dict()[f"rank{rank}"]
        training.optimizer.zero_grad()
        loss = training.loss()
        if rank == 1:
            loss = loss + model.module[0].weight[0, 0] * float("nan")
        loss.backward()
        nan = all(bool(each.grad.isnan().all()) for each in model.parameters())
        after = hook.state_dict()[f"rank{rank}"]
        same = before[0] == after[0] and before[1].keys() == after[1].keys()
        same = same and all(
            before[1][key].equal(after[1][key]) for key in before[1] if not key.startswith("step")
        )
        training.run(2)
        seen["skipped"][codec] = nan, same, digest(model)

    # A resumed run continues bit for bit.
    seen["resumed"] = {}
    for codec in ("int8:stochastic", "powersgd:2", "topk:0.1"):
        whole = Training("mlp", wrapped("mlp"))
        hook = thinwire.torch.attach(whole.model, codec, within="host")
        whole.run(6)
        parts = whole.model.state_dict(), whole.optimizer.state_dict(), hook.state_dict()
        parts = {key: each.clone() for key, each in parts[0].items()}, *map(copied, parts[1:])
        data = whole.data.get_state()
        whole.run(5)
        resumed = Training("mlp", wrapped("mlp"))
        other = thinwire.torch.attach(resumed.model, codec, within="host")
        resumed.model.load_state_dict(parts[0])
        resumed.optimizer.load_state_dict(parts[1])
        other.load_state_dict(parts[2])
        resumed.data.set_state(data)
        resumed.run(5)
        seen["resumed"][codec] = digest(whole.model), digest(resumed.model)

    # States of other parts are refused, on all ranks.
    groups = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    seen["refused"] = [
        said(lambda: thinwire.torch.attach(wrapped("mlp"), codec).load_state_dict(parts[2])),
        said(
            lambda: thinwire.torch.attach(
                wrapped("mlp"), codec, within=groups[rank % 2]
            ).load_state_dict(parts[2])
        ),
        said(
            lambda: thinwire.torch.attach(wrapped("mlp"), codec, within="host").load_state_dict(
                {
                    "rank0": (*parts[2][f"rank{rank}"][:-1], 2),
                    "rank1": (*parts[2][f"rank{rank}"][:-1], 2),
                }
            )
        ),
    ]
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [1, 2], [2, 3], [0, 1, 2, 3])]
    overlapping = pairs[0] if rank == 0 else pairs[1] if rank in (1, 2) else pairs[2]
    seen["refused"] += [
        said(lambda: thinwire.torch.attach(wrapped("mlp"), within=overlapping)),
        said(lambda: thinwire.torch.attach(wrapped("mlp"), within="rack")),
        said(lambda: thinwire.torch.attach(wrapped("mlp"), within="host" if rank else None)),
    ]
    on_hosts(0, 0, 0, 1)
    seen["refused"].append(said(lambda: thinwire.torch.attach(wrapped("mlp"), within="host")))
    dist.destroy_process_group()
    return seen


def copied(state):
    """A copy of a state dict."""
    import copy

    return copy.deepcopy(state)


def said(action):
    """What an InvalidError says."""
    from thinwire._core import InvalidError

    with pytest.raises(InvalidError) as caught:
        action()
    return str(caught.value)


@functools.cache
def all_laws():
    return launch.results(launch.run(WORLD, laws, wait_for_all=False))


def test_averages_and_what_is_owed_are_what_was_given():
    for seen in all_laws():
        assert seen["feedback"] <= 2e-6
        assert seen["part"] == [[2, 174], [348]]


def test_a_nan_in_one_part_leaves_no_trace_in_any():
    for codec in ("int8", "topk:0.1", "powersgd:2"):
        found = [seen["skipped"][codec] for seen in all_laws()]
        assert all(nan and same for nan, same, _ in found), (codec, found)
        assert len({digest for *_, digest in found}) == 1


def test_a_resumed_run_continues_bit_for_bit():
    for seen in all_laws():
        for codec, (whole, resumed) in seen["resumed"].items():
            assert whole == resumed, codec


def test_what_does_not_fit_is_refused_in_one_line_on_all_ranks():
    expected = [
        "exchanges whole gradients",
        "of each gradient, this rank exchanges part",
        "parts of gradients cannot be divided again",
        "within does not partition the ranks: the group of rank 0 has ranks 0, 1, that of rank 1 has 1, 2",
        'within is "rack", expected None, "host" or the process group',
        "ranks disagree: rank 1 has within host, rank 0 has within none",
        "the host of rank 0 has 3 ranks, that of rank 3 has 1, expected equal numbers",
    ]
    for seen in all_laws():
        for text, part in zip(seen["refused"], expected, strict=True):
            assert (part in text or "says: " in text) and "\n" not in text, text
    for place, part in enumerate(expected):
        assert any(part in seen["refused"][place] for seen in all_laws())


def failing(way):
    """Rank 3 comes to a bad end; what the others see of it, and after how long."""
    import thinwire.torch
    from torch_models import Training, past_a_barrier, wrapped

    dist = on_hosts(0, 0, 1, 1)
    model = wrapped("mlp")
    thinwire.torch.attach(model, "int8", within="host")
    training = Training("mlp", model).run(3)
    past_a_barrier()
    if dist.get_rank() == 3:
        if way == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("no such file: data.txt")
    began = time.monotonic()
    try:
        training.run(20)
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return "nothing", "", 0.0


@pytest.mark.parametrize(
    ("way", "text"), [("killed", "rank 3"), ("raises", "rank 3 raised ValueError: no such file")]
)
def test_the_loss_of_a_rank_is_one_line_on_every_host(way, text):
    outcomes = launch.run(WORLD, failing, arguments=[way])
    assert outcomes[3].code != 0
    for outcome in outcomes[:3]:
        assert outcome.code == 0, launch.report(outcome)
        kind, found, waited_s = outcome.result
        assert kind == "PeerError" and text in found and "\n" not in found, found
        assert waited_s <= LIMIT_S


def names():
    """The host's name twice, then after a move to a network namespace of its own, if there may be one."""
    import ctypes

    from thinwire.torch.hosts import name

    before = [name(), name()]
    is_moved = ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0
    return [*before, name()] if is_moved else before


def test_network_namespaces_are_hosts_of_their_own():
    (found,) = launch.results(launch.run(1, names))
    assert found[0] == found[1]
    if len(found) < 3:
        pytest.skip("no network namespaces: needs root")
    assert found[2] != found[0]
