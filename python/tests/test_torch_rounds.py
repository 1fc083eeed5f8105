"""Rounds in the modes of the core: they continue from a state, and end alike.

Pairs average when their ranks have time, so that two trainings end with different bits.
"""

import pytest

pytestmark = pytest.mark.needs("torch")

MODES = [
    ("local:2", "int8", "float32"),
    ("diloco:4,fragments=2,delay=3", "int4", "float32"),
    ("diloco:3", "topk:0.1", "bfloat16"),
    ("sma:0.3", "none", "float16"),
    ("pair:2", "none", "bfloat16"),
]


def training(dtype, seed=0):
    """A model and the function that takes steps of it on this rank's data."""
    import torch

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    model = model.to(getattr(torch, dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(group, number):
        generator = torch.Generator().manual_seed(1000 * group.rank + number)
        inputs = torch.randn(8, 6, generator=generator).to(getattr(torch, dtype))
        optimizer.zero_grad()
        (model(inputs) - inputs[:, :2]).float().square().mean().backward()
        optimizer.step()

    return model, step


def flat(model):
    """All parameters in one row of f32."""
    import torch

    return torch.cat([each.detach().float().reshape(-1) for each in model.parameters()])


def continued():
    """By mode: whether a training that continues from a state ends with the same bits as one that went on,
    and a digest of the parameters in the end."""
    import hashlib
    import io

    import torch

    import thinwire
    import thinwire.torch

    group, found = thinwire.init(), {}
    for mode, codec, dtype in MODES:
        model, step = training(dtype, group.rank)
        rounds = thinwire.torch.Rounds(model, mode, codec=codec, group=group)
        for number in range(7):
            step(group, number)
            rounds.step()
        file = io.BytesIO()
        torch.save(rounds.state_dict(), file)
        for number in range(7, 13):
            step(group, number)
            rounds.step()
        rounds.finish()
        again, step = training(dtype, group.rank)
        rounds = thinwire.torch.Rounds(again, mode, codec=codec, group=group)
        file.seek(0)
        rounds.load_state_dict(torch.load(file, weights_only=True))
        for number in range(7, 13):
            step(group, number)
            rounds.step()
        rounds.finish()
        digest = hashlib.sha256(flat(again).numpy().tobytes()).hexdigest()
        found[mode] = (bool(torch.equal(flat(model), flat(again))), digest)
    group.close()
    return found


def test_a_state_continues_bit_for_bit_and_ranks_end_alike(ranks):
    first, *others = ranks(3, continued)
    assert all(same or mode.startswith("pair") for mode, (same, _) in first.items()), first
    for other in others:
        assert {mode: digest for mode, (_, digest) in other.items()} == {
            mode: digest for mode, (_, digest) in first.items()
        }


def turned():
    """By mode: parameters in the end of a training in channels-last memory, and of one that continues from
    its state in the other order."""
    import copy

    import torch

    import thinwire
    import thinwire.torch

    group, found = thinwire.init(), {}
    for mode in ("local:2", "diloco:2", "sma:0.3"):

        def steps(model, rounds, numbers):
            for number in numbers:
                generator = torch.Generator().manual_seed(1000 * group.rank + number)
                with torch.no_grad():
                    model.weight.add_(torch.randn(model.weight.shape, generator=generator))
                rounds.step()

        model = torch.nn.Conv2d(3, 4, 2, bias=False).to(memory_format=torch.channels_last)
        rounds = thinwire.torch.Rounds(model, mode, codec="none", group=group)
        steps(model, rounds, range(3))
        state = copy.deepcopy(rounds.state_dict())
        steps(model, rounds, range(3, 8))
        again = torch.nn.Conv2d(3, 4, 2, bias=False)
        rounds = thinwire.torch.Rounds(again, mode, codec="none", group=group)
        rounds.load_state_dict(state)
        steps(again, rounds, range(3, 8))
        found[mode] = [each.weight.detach().flatten().tolist() for each in (model, again)]
    group.close()
    return found


def test_a_state_does_not_depend_on_the_order_of_memory(ranks):
    for found in ranks(2, turned):
        for model, again in found.values():
            assert model == again


def restored():
    """A rounded parameter after one rank had a NaN, and its program has replaced it."""
    import torch

    import thinwire
    import thinwire.torch

    group = thinwire.init()
    model = torch.nn.Linear(4, 4, bias=False).half()
    torch.nn.init.zeros_(model.weight)
    rounds = thinwire.torch.Rounds(model, "pair:1", group=group)
    for value in (float("nan") if group.rank else 0.0, float(group.rank)):
        torch.nn.init.constant_(model.weight, value)
        rounds.step()
    rounds.finish()
    group.close()
    return model.weight.detach().unique().tolist()


def test_a_parameter_is_exchanged_again_once_it_is_finite(ranks):
    assert ranks(2, restored) == [[0.5], [0.5]]


def refused():
    """The errors of states and modes that do not fit."""
    import thinwire
    import thinwire.torch

    group, errors = thinwire.init(), []
    model, _ = training("float32")
    rounds = thinwire.torch.Rounds(model, "local:2", group=group)
    entries = rounds.state_dict()
    attempts = (
        lambda: thinwire.torch.Rounds(model, "diloco:x", group=group),
        lambda: thinwire.torch.Rounds(model, "step", group=group),
        lambda: thinwire.torch.Rounds(model, "pair", codec="int8", group=group),
        lambda: rounds.load_state_dict({**entries, "mode": "local:3"}),
        lambda: rounds.load_state_dict({**entries, "world": 3}),
        lambda: rounds.load_state_dict({}),
    )
    for attempt in attempts:
        try:
            attempt()
        except thinwire.InvalidError as error:
            errors.append(str(error))
    rounds.load_state_dict(entries)
    group.close()
    return errors


def test_what_does_not_fit_is_refused(ranks):
    expected = [
        "mode diloco has 'x' steps",
        "mode step has no rounds, expected local:EVERY, diloco:EVERY, sma:PULL or pair:EVERY",
        "codec int8 with mode pair",
        "the state is of mode local:3 on 2 ranks, this training is of mode local:2 on 2",
        "the state is of mode local:2 on 3 ranks",
        "the state has no mode",
    ]
    for errors in ranks(2, refused):
        assert len(errors) == len(expected), errors
        for error, part in zip(errors, expected):
            assert part in error


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7, 8])
def test_partners_are_mutual(world):
    from thinwire._core import partner

    for drawing in range(50):
        partners = [partner(rank, world, 3, drawing) for rank in range(world)]
        assert partners.count(None) == world % 2
        for rank, other in enumerate(partners):
            assert other is None or (other != rank and partners[other] == rank)
