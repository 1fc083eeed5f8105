"""LocalSGD, DiLoCo and PairAveraging, modes of the core: what ranks have in common after a round."""

import collections
import itertools

import pytest

pytestmark = pytest.mark.needs("torch")


def start(name, rate=0.05):
    """A training of this rank alone, from a start of its own."""
    import torch
    import torch.distributed as dist

    from torch_models import MODELS, Training

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(50 + dist.get_rank())
    return Training(name, MODELS[name](), rate)


def mean(values):
    """The mean of all ranks' values, by gloo."""
    import torch.distributed as dist

    total = values.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def parameters(model):
    """All parameters in one row of float64."""
    import torch

    return torch.cat([each.detach().double().reshape(-1) for each in model.parameters()])


def follow_a_reference(mode):
    """How far a mode is after each round from the same computed with float64 and gloo."""
    import torch
    import torch.distributed as dist

    import thinwire.torch

    training = start("mlp")
    wrapper = getattr(thinwire.torch, mode)(training.model, every=3, codec="none")
    common = parameters(training.model)
    momentum, apart, differences = torch.zeros_like(common), [], []
    for step in range(1, 13):
        training.run(1)
        apart.append((parameters(training.model) - mean(parameters(training.model))).abs().max())
        moved = common - mean(parameters(training.model))
        assert wrapper.step() == (step % 3 == 0)
        if step % 3 == 0:
            momentum = 0.9 * momentum + moved
            by = moved if mode == "LocalSGD" else 0.7 * (moved + 0.9 * momentum)
            common = common - by
            differences.append((parameters(training.model) - common).abs().max().item())
    dist.destroy_process_group()
    return max(differences), min(apart).item()


@pytest.mark.parametrize("mode", ["LocalSGD", "DiLoCo"])
def test_a_round_is_the_outer_step_of_the_mean(ranks, mode):
    for difference, apart in ranks(2, follow_a_reference, arguments=[mode]):
        assert difference <= 1e-6
        assert apart > 1e-4


def rounds(cases):
    """Trains in each way: a hash of the parameters, the sums of the buffers, whether the loss fell."""
    import torch.distributed as dist

    import thinwire.torch
    from torch_models import digest

    results = []
    for mode, name, codec in cases:
        training = start(name)
        wrapper = getattr(thinwire.torch, mode)(training.model, every=4, codec=codec)
        for _ in range(40):
            training.run(1)
            wrapper.step()
        buffers = [each.double().sum().item() for each in training.model.buffers()]
        results.append([digest(training.model), buffers, training.fell()])
    dist.destroy_process_group()
    return results


ROUNDS = [
    *[("DiLoCo", "gpt", "int8"), ("DiLoCo", "gpt", "int4"), ("DiLoCo", "gpt", "auto")],
    *[("LocalSGD", "gpt", "bf16"), ("LocalSGD", "cnn", "int8"), ("LocalSGD", "mixed", "none")],
]


def test_ranks_are_bit_identical_after_a_round(ranks):
    by_rank = ranks(2, rounds, arguments=[ROUNDS])
    for case, first, second in zip(ROUNDS, *by_rank):
        assert first[:2] == second[:2], case
        assert case[1] != "gpt" or (first[2] and second[2]), case


def diverge():
    """One rank's parameters become infinite: what all have afterwards, and the warning."""
    import warnings

    import torch
    import torch.distributed as dist

    import thinwire.torch
    from torch_models import digest

    training = start("mlp")
    wrapper = thinwire.torch.DiLoCo(training.model, every=2, codec="int8")
    before = digest(training.model)
    training.run(1)
    wrapper.step()
    if dist.get_rank() == 1:
        with torch.no_grad():
            next(training.model.parameters())[0, 0] = float("inf")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        wrapper.step()
    after = digest(training.model)
    dist.destroy_process_group()
    return before == after, [str(each.message) for each in said]


def test_a_rank_that_diverges_takes_all_back_to_what_they_had_in_common(ranks):
    for back, said in ranks(2, diverge):
        assert back
        assert any("diverged" in text for text in said)


def go_on(folder):
    """Continues after a checkpoint, and from it: the hashes of both."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint

    import thinwire.torch
    from torch_models import digest

    def fresh():
        training = start("mlp")
        return training, thinwire.torch.DiLoCo(training.model, every=3, codec="int4")

    def run(training, wrapper, steps):
        for _ in range(steps):
            training.run(1)
            wrapper.step()

    training, wrapper = fresh()
    run(training, wrapper, 6)
    checkpoint.save({"model": training.model, "wrapper": wrapper}, checkpoint_id=folder)
    data, inner = training.data.get_state(), training.optimizer.state_dict()
    plain = [wrapper.state_dict(), {k: v.clone() for k, v in training.model.state_dict().items()}]
    torch.save([*plain, inner], f"{folder}/{dist.get_rank()}.pt")
    run(training, wrapper, 6)
    digests = [digest(training.model)]

    again, new = fresh()
    checkpoint.load({"model": again.model, "wrapper": new}, checkpoint_id=folder)
    saved = torch.load(f"{folder}/{dist.get_rank()}.pt", weights_only=True)
    again.optimizer.load_state_dict(saved[2])
    again.data.set_state(data)
    run(again, new, 6)
    digests.append(digest(again.model))

    again, new = fresh()
    saved = torch.load(f"{folder}/{dist.get_rank()}.pt", weights_only=True)
    again.model.load_state_dict(saved[1])
    again.optimizer.load_state_dict(saved[2])
    new.load_state_dict(saved[0])
    again.data.set_state(data)
    run(again, new, 6)
    dist.destroy_process_group()
    return [*digests, digest(again.model)]


def test_diloco_goes_on_bit_for_bit(ranks, tmp_path):
    first, second = ranks(2, go_on, arguments=[str(tmp_path)])
    assert len({*first, *second}) == 1


def gossip(codec):
    """Rounds in pairs: partners, how far the end is from the mean of all that ranks have learnt, and its
    digest. When ranks average depends on their speed."""
    import torch
    import torch.distributed as dist

    import thinwire.torch
    from torch_models import digest

    model = start("mlp").model
    wrapper = thinwire.torch.PairAveraging(model, codec=codec, seed=3)
    learnt, partners = parameters(model), []
    torch.manual_seed(dist.get_rank())
    for _ in range(6):
        moved = 0.01 * torch.randn(len(learnt), dtype=torch.float64)
        learnt += moved
        torch.nn.utils.vector_to_parameters((parameters(model) + moved).float(), model.parameters())
        partners.append(wrapper.step())
    wrapper.agree()
    apart = (parameters(model) - mean(learnt)).abs().max().item()
    dist.destroy_process_group()
    return partners, apart, digest(model)


@pytest.mark.parametrize(("world", "codec"), [(3, "none"), (2, "bf16")])
def test_pairs_keep_the_mean_and_agree_in_the_end(ranks, world, codec):
    by_rank = ranks(world, gossip, arguments=[codec])
    for met in zip(*(partners for partners, _, _ in by_rank)):
        assert met.count(None) == world % 2
        assert all(other is None or met[other] == rank for rank, other in enumerate(met))
    assert all(apart <= 1e-6 for _, apart, _ in by_rank), by_rank
    assert len({end for _, _, end in by_rank}) == 1


DTYPES = ("float32", "float16", "bfloat16")


def make(mode, model):
    """A mode with a round in every step."""
    import thinwire.torch

    return getattr(thinwire.torch, mode)(model, every=1, codec="none")


def stand_still():
    """For each mode and dtype: whether rounds without training leave every bit of a model."""
    import torch
    import torch.distributed as dist

    from torch_models import digest

    dist.init_process_group("gloo")
    alike = {}
    for mode in ("DiLoCo", "LocalSGD", "PairAveraging"):
        for dtype in DTYPES:
            torch.manual_seed(1)
            model = torch.nn.Linear(32, 32).to(getattr(torch, dtype))
            wrapper, before = make(mode, model), digest(model)
            for _ in range(20):
                wrapper.step()
            if mode == "PairAveraging":
                wrapper.agree()
            alike[f"{mode} of {dtype}"] = digest(model) == before
    dist.destroy_process_group()
    return alike


def test_rounds_without_training_change_nothing(ranks):
    for alike in ranks(2, stand_still):
        assert all(alike.values()), alike


def follow_float32(rounds=200, size=512):
    """Trains f16 and bf16 models like one in f32, and then no more, saved and loaded half-way.

    Gives the largest difference between parameters of both, in steps of the dtype, and how far all
    went. Trainings are such that the dtypes have no rounding of their own: a step of the dtype, or none.
    """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    found = {}
    for mode in ("DiLoCo", "LocalSGD", "PairAveraging"):
        for dtype in DTYPES[1:]:
            torch.manual_seed(dist.get_rank())
            half = torch.nn.Linear(size, 1, bias=False).to(getattr(torch, dtype))
            half.weight.data.fill_(1.5)
            whole = torch.nn.Linear(size, 1, bias=False)
            whole.weight.data.fill_(1.5)
            wrappers = [make(mode, model) for model in (half, whole)]
            ulp = torch.finfo(half.weight.dtype).eps
            for number in range(rounds):
                moved = (torch.rand(1, size) < (0.1 if number < 30 else 0.0)) * ulp
                moved *= dist.get_rank() == 0
                for model, wrapper in zip((half, whole), wrappers):
                    model.weight.data.add_(moved)
                    wrapper.step()
                if number == 20:
                    state = wrappers[0].state_dict()
                    wrappers[0] = make(mode, half)
                    wrappers[0].load_state_dict(state)
            if mode == "PairAveraging":
                for wrapper in wrappers:
                    wrapper.agree()
            apart = (half.weight.float() - whole.weight).abs().max().item() / ulp
            went = (whole.weight - 1.5).abs().mean().item() / ulp
            found[f"{mode} of {dtype}"] = [apart, went]
    dist.destroy_process_group()
    return found


def test_half_precision_follows_float32(ranks):
    for found in ranks(2, follow_float32):
        for name, (apart, went) in found.items():
            assert went > 1.0, (name, went)
            assert apart <= 1.0, (name, apart)


@pytest.mark.parametrize("world", [2, 3, 4, 5, 8])
def test_every_other_rank_is_an_equally_likely_partner(world):
    from thinwire._core import partner as draw

    drawings, met = 4000, collections.Counter()
    for drawing in range(drawings):
        drawn = [draw(rank, world, 11, drawing) for rank in range(world)]
        for rank, partner in enumerate(drawn):
            assert partner is None or (partner != rank and drawn[partner] == rank)
            met[rank, partner] += partner is not None
    expected = drawings / (world - 1 + world % 2)
    for pair in itertools.permutations(range(world), 2):
        assert abs(met[pair] - expected) <= 0.15 * expected


def test_one_rank_alone_trains_as_if_nothing_were_there():
    import torch

    import thinwire.torch

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    group = thinwire.init(rank=0, world=1)
    local = thinwire.torch.LocalSGD(model, every=2, group=group)
    pairs = thinwire.torch.PairAveraging(model, group=group)
    before = model.weight.detach().clone()
    assert [local.step(), local.step(), pairs.step()] == [False, True, None]
    assert torch.equal(model.weight, before)


def sharded():
    """What each mode says of a model in FSDP2."""
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    import thinwire
    import thinwire.torch

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    model, said = fully_shard(nn.Linear(8, 8)), {}
    for mode in ("DiLoCo", "LocalSGD", "PairAveraging"):
        try:
            getattr(thinwire.torch, mode)(model)
        except thinwire.InvalidError as error:
            said[mode] = str(error)
    dist.destroy_process_group()
    return said


def test_sharded_models_are_refused(ranks):
    (said,) = ranks(1, sharded)
    assert len(said) == 3
    for text in said.values():
        assert text.startswith("weight is a DTensor, expected a whole parameter")


def disagreeing():
    """What each mode says where ranks give it different models or options."""
    import torch
    from torch import nn

    import thinwire
    import thinwire.torch
    from thinwire.torch import DiLoCo, LocalSGD, PairAveraging

    group = thinwire.init(timeout_s=10)
    rank, said = group.rank, {}
    dtypes, layers = (torch.float16, torch.bfloat16), [nn.Linear(2, 2), nn.Linear(2, 2)]
    options = {"codec": "none", "group": group}
    calls = {
        "dtype": lambda: DiLoCo(nn.Linear(8, 8).to(dtypes[rank]), **options),
        "dtype of pairs": lambda: PairAveraging(nn.Linear(8, 8).to(dtypes[rank]), **options),
        "shape": lambda: PairAveraging(nn.Linear(8 >> rank, 8 << rank), **options),
        "count": lambda: LocalSGD(nn.Sequential(*layers[: 1 + rank]), **options),
        "seed": lambda: PairAveraging(nn.Linear(8, 8), seed=rank, **options),
        "every": lambda: DiLoCo(nn.Linear(8, 8), every=1 + rank, **options),
        "mode": lambda: (DiLoCo, LocalSGD)[rank](nn.Linear(8, 8), every=8, **options),
        "codec": lambda: DiLoCo(nn.Linear(8, 8), codec=("int8", "int4")[rank], group=group),
        "unknown": lambda: DiLoCo(nn.Linear(8, 8), codec="zip", group=group),
        "buffers": lambda: PairAveraging(nn.BatchNorm1d(4, affine=True), **options),
    }
    for name, call in calls.items():
        try:
            call()
            said[name] = "nothing"
        except thinwire.InvalidError as error:
            said[name] = str(error)
    return said


def test_ranks_that_disagree_hear_it_before_anything_is_sent(ranks):
    first, second = ranks(2, disagreeing)
    assert first == second
    expected = {
        "dtype": "rank 1 has weight torch.bfloat16 [8, 8], rank 0 has weight torch.float16 [8, 8]",
        "dtype of pairs": "torch.bfloat16",
        "shape": "rank 1 has weight torch.float32 [16, 4], rank 0 has weight torch.float32 [8, 8]",
        "count": "parameters and options, rank 0 has",
        "seed": "rank 1 has seed 1, rank 0 has seed 0",
        "every": "rank 1 has mode diloco:2,outer=nesterov,lr=0.7,factor=0.9, rank 0 has mode diloco:1,",
        "mode": "rank 1 has mode local:8, rank 0 has mode diloco:8,outer=nesterov",
        "codec": "rank 1 has codec int4, rank 0 has codec int8",
        "unknown": "unknown codec 'zip'",
        "buffers": "nothing",
    }
    for name, text in expected.items():
        assert text in first[name], (name, first[name])


def broken_on_one_rank():
    """What each rank is told of a state that is no good on rank 1 alone, and whether all continue alike."""
    import torch

    import thinwire
    from thinwire.torch import DiLoCo, PairAveraging
    from torch_models import digest

    group = thinwire.init(timeout_s=30)
    torch.manual_seed(group.rank)
    model, said = torch.nn.Linear(3, 2), {}
    outer = DiLoCo(model, every=2, codec="int8", group=group)
    pairs = PairAveraging(model, every=2, group=group)
    saved, gossip = outer.state_dict(), pairs.state_dict()
    mine = f"rank{group.rank}"
    tensors, exact = saved[mine]
    cases = {
        "no progress": (outer, {name: saved[name] for name in saved if name != "progress"}),
        "shape": (outer, {**saved, mine: (tensors, {**exact, "bias": torch.ones(3)})}),
        "nan": (outer, {**saved, mine: (tensors, {**exact, "bias": torch.full((2,), torch.nan)})}),
        "mode": (outer, gossip),
        "pairs": (pairs, {**gossip, mine: (torch.ones(9),)}),
        "no state": (pairs, []),
    }
    for name, (which, state) in cases.items():
        good = saved if which is outer else gossip
        try:
            which.load_state_dict(state if group.rank == 1 else good)
            said[name] = "nothing"
        except thinwire.InvalidError as error:
            said[name] = str(error)
    with torch.no_grad():
        model.bias.add_(group.rank)
    assert [outer.step(), outer.step()] == [False, True]
    return said, digest(model)


def test_a_state_that_is_broken_on_one_rank_is_refused_on_all(ranks):
    (first, alike), (second, digest) = ranks(2, broken_on_one_rank)
    assert alike == digest
    expected = {
        "no progress": "the state has no progress",
        "shape": "the state has shape [3] of bias, expected shape [2]",
        "nan": "bias in the state is not finite",
        "mode": "the state is of mode pair:2 on 2 ranks, this training is of mode diloco:2,",
        "pairs": "expected the result of state_dict on that rank",
        "no state": "the state has no mode",
    }
    for name, text in expected.items():
        assert text in first[name] and text in second[name], (name, first[name], second[name])


def frozen_in(mode, group):
    """What is said of parameters frozen when ranks begin alike: on one rank, or for some rounds."""
    import copy

    from torch import nn

    options = {"every": 1, "group": group}
    model, said = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), {}
    model[1].requires_grad_(group.rank == 0)
    said["on one rank"] = failure(lambda: mode(model, **options))
    model[1].requires_grad_(False)
    made = mode(model, **options)
    made.step()
    said["copy"] = failure(lambda: copy.deepcopy(made))
    model[0].requires_grad_(False)

    def thaw():
        # Rank 0's refusal may reach rank 1 while it waits for the end of the step before.
        made.step()
        model[1].requires_grad_(group.rank == 0)
        made.step()

    said["unfrozen"] = failure(thaw)
    return said


def frozen_parameters():
    """What each mode says of frozen parameters, and DiLoCo of what is no model or optimizer."""
    import thinwire
    from thinwire.torch import DiLoCo, LocalSGD, PairAveraging
    from torch_models import mlp

    group = thinwire.init(timeout_s=30)
    modes = (LocalSGD, PairAveraging)
    said = {mode.__name__: frozen_in(mode, group.split(mode.__name__)) for mode in modes}
    said["model"] = failure(lambda: DiLoCo(3, group=group))
    said["outer"] = failure(lambda: DiLoCo(mlp(), outer=3, group=group))
    said["made"] = failure(lambda: DiLoCo(mlp(), outer=lambda _: None, group=group))
    return said


def failure(action):
    """What an action raises."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_parameters_that_would_not_be_exchanged_are_refused(ranks):
    first, second = ranks(2, frozen_parameters)
    for mode in ("LocalSGD", "PairAveraging"):
        assert "1.weight requires a gradient and did not when" in first[mode]["unfrozen"]
        for said in (first[mode], second[mode]):
            line = "ranks disagree: rank 1 has 1.weight torch.float32 [2, 2] frozen"
            assert line in said["on one rank"]
            assert said["copy"].startswith("InvalidError: connections to other ranks cannot be")
        assert first[mode]["unfrozen"].startswith("InvalidError: 1.weight")
    # Rank 1 waits for the round in which rank 0 refuses.
    assert second["LocalSGD"]["unfrozen"].startswith("PeerError: ")
    for said in (first, second):
        assert said["model"] == "InvalidTypeError: model is 3, expected Module"
        assert (
            said["outer"] == "InvalidError: outer is 3, expected a function that makes an optimizer"
        )
        assert said["made"] == "InvalidTypeError: what outer makes is None, expected Optimizer"
