"""1-bit Adam: AdamW in the warm-up, a fixed variance afterwards; ranks are alike and resume bit for bit."""

import pytest

pytestmark = pytest.mark.needs("torch")


def model_of(seed):
    """A small model."""
    import torch

    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.Tanh(), torch.nn.Linear(40, 2))


def backward(model, rank, step):
    """The loss of a rank's own batch, with its gradients."""
    import torch

    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(64, 6, generator=generator)
    model.zero_grad()
    loss = (model(inputs) - inputs[:, :2].sin()).square().mean()
    loss.backward()
    return loss.item()


def flat(model):
    """All parameters in one row."""
    import torch

    return torch.cat([each.detach().reshape(-1) for each in model.parameters()])


def beside_adamw():
    """How far parameters are from AdamW's with the mean gradient, and from the same with a fixed variance,
    after the steps of a warm-up and after more."""
    import torch

    import thinwire
    import thinwire.torch

    group = thinwire.init()
    options = {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1}
    model, other = model_of(group.rank), model_of(0)
    optimizer = thinwire.torch.OneBitAdam(
        model.parameters(), **options, warm_up=6, codec="none", group=group
    )
    adamw = torch.optim.AdamW(other.parameters(), **options)
    apart, fixed = [], None
    for step in range(12):
        gradients = []
        for rank in range(group.world):
            backward(other, rank, step)
            gradients.append([each.grad.clone() for each in other.parameters()])
        for each, *shares in zip(other.parameters(), *gradients):
            each.grad = sum(shares) / group.world
        if step == 6:
            kept = [adamw.state[each] for each in other.parameters()]
            fixed = [(it["exp_avg_sq"].clone(), it["step"].item()) for it in kept]
        if fixed is None:
            adamw.step()
        else:
            by_hand(other, adamw, fixed, step + 1, options)
        backward(model, group.rank, step)
        optimizer.step()
        apart.append((flat(model) - flat(other)).abs().max().item())
        assert optimizer.is_warm == (step >= 5)
    group.close()
    return max(apart[:6]), max(apart)


def by_hand(model, adamw, fixed, step, options):
    """A step of AdamW with variances that do not change."""
    import torch

    beta1, beta2 = options["betas"]
    with torch.no_grad():
        for each, (variance, steps) in zip(model.parameters(), fixed):
            mean = adamw.state[each]["exp_avg"]
            mean.lerp_(each.grad, 1 - beta1)
            root = (variance / (1 - beta2**steps)).sqrt() + 1e-8
            each.mul_(1 - options["lr"] * options["weight_decay"])
            each.sub_(options["lr"] / (1 - beta1**step) * mean / root)


def test_a_step_is_adamws(ranks):
    for during, after in ranks(2, beside_adamw):
        assert during <= 1e-6
        assert after <= 2e-6


def continued():
    """Losses, whether the warm-up ended by itself, and digests of the parameters of a training that went on
    and of one that continues from a state."""
    import hashlib
    import io

    import torch

    import thinwire
    import thinwire.torch

    group = thinwire.init()

    def start():
        model = model_of(group.rank)
        optimizer = thinwire.torch.OneBitAdam(
            model.parameters(), lr=0.01, betas=(0.9, 0.98), group=group
        )
        return model, optimizer

    model, optimizer = start()
    losses, warm = [], []
    for step in range(200):
        losses.append(backward(model, group.rank, step))
        optimizer.step()
        warm.append(optimizer.is_warm)
        if step == 149:
            file = io.BytesIO()
            torch.save((model.state_dict(), optimizer.state_dict()), file)
    again, optimizer = start()
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    again.load_state_dict(weights)
    optimizer.load_state_dict(state)
    for step in range(150, 200):
        backward(again, group.rank, step)
        optimizer.step()
    group.close()
    digest = lambda it: hashlib.sha256(flat(it).numpy().tobytes()).hexdigest()  # noqa: E731
    return losses, warm, digest(model), digest(again)


def test_the_warm_up_ends_and_a_state_continues_bit_for_bit(ranks):
    results = ranks(2, continued)
    for losses, warm, first, again in results:
        assert 49 < warm.index(True) < 149
        assert all(warm[warm.index(True) :])
        assert sum(losses[-10:]) < 0.3 * sum(losses[:10])
        assert first == again
    assert results[0][2] == results[1][2]


def rescheduled():
    """By dtype: digests of a training that went on and of one that continues from a state, with another
    learning rate from there on."""
    import copy
    import hashlib

    import torch

    import thinwire
    import thinwire.torch

    group, found = thinwire.init(), {}
    for dtype in (torch.float32, torch.bfloat16):

        def start(rate, dtype=dtype):
            model = model_of(group.rank).to(dtype)
            halves = [{"params": each.parameters()} for each in (model[0], model[2])]
            optimizer = thinwire.torch.OneBitAdam(halves, lr=rate, warm_up=4, group=group)
            return model, optimizer

        def steps(model, optimizer, numbers):
            for number in numbers:
                generator = torch.Generator().manual_seed(1000 * group.rank + number)
                for each in model.parameters():
                    each.grad = 1e-3 * torch.randn(each.shape, generator=generator).to(each.dtype)
                optimizer.step()

        def go_on(model, optimizer):
            steps(model, optimizer, range(6, 9))
            optimizer.param_groups[1]["lr"] = 0.25
            steps(model, optimizer, range(9, 12))
            values = flat(model).float().numpy().tobytes()
            return hashlib.sha256(values).hexdigest()

        model, optimizer = start(0.01)
        steps(model, optimizer, range(6))
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        went_on = go_on(model, optimizer)
        model, optimizer = start(0.5)
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        found[str(dtype)] = (went_on, go_on(model, optimizer))
    group.close()
    return found


def test_a_state_has_rates_and_exact_moments(ranks):
    first, second = ranks(2, rescheduled)
    assert first == second
    for went_on, again in first.values():
        assert went_on == again


def scaled():
    """Parameters after steps with a GradScaler, of which one overflows on rank 1 alone, and without it."""
    import torch

    import thinwire
    import thinwire.torch

    group, found = thinwire.init(), []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
        model = model_of(0)
        optimizer = thinwire.torch.OneBitAdam(model.parameters(), warm_up=3, group=group)
        for step in range(6):
            backward(model, group.rank, step)
            for each in model.parameters():
                each.grad *= 1.0 if scaler is None else scaler.scale(torch.ones(())).item()
                each.grad += float("inf") if group.rank and step in (1, 4) else 0.0
            if scaler is None:
                optimizer.step()
                continue
            if step == 2:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        found.append(flat(model).tolist())
    group.close()
    return found


def test_an_overflow_on_one_rank_is_skipped_by_all(ranks):
    (alone, under), other = ranks(2, scaled)
    assert alone == under
    assert other == [alone, under]


def unseen():
    """How far an embedding has moved of whose rows half come after the warm-up, and a frozen parameter."""
    import torch

    import thinwire
    import thinwire.torch

    group = thinwire.init()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(32, 16), torch.nn.Linear(16, 4))
    model[1].requires_grad_(False)
    begun = [each.detach().clone() for each in model.parameters()]
    optimizer = thinwire.torch.OneBitAdam(
        model.parameters(), lr=0.01, weight_decay=0.1, warm_up=10, group=group
    )
    for step in range(20):
        ids = torch.arange(0, 32, 2 if step < 10 else 1)
        model.zero_grad()
        model(ids).square().mean().backward()
        optimizer.step()
    group.close()
    return [(each - then).abs().max().item() for each, then in zip(model.parameters(), begun)]


def test_elements_without_a_variance_and_frozen_ones_stay_where_they_are(ranks):
    for embedding, weight, bias in ranks(2, unseen):
        assert 0.05 < embedding < 1
        assert weight == bias == 0


def skipped():
    """Whether a step with a gradient that is not finite on rank 1 leaves all as it was; and errors."""
    import torch

    import thinwire
    import thinwire.torch

    group, same, errors = thinwire.init(), [], []
    model = model_of(0)
    optimizer = thinwire.torch.OneBitAdam(model.parameters(), warm_up=2, group=group)
    for step in range(6):
        backward(model, group.rank, step)
        before = flat(model).clone()
        if step in (1, 4):
            if group.rank == 1:
                next(model.parameters()).grad[0, 0] = float("nan")
            optimizer.step()
            same.append(bool(torch.equal(before, flat(model))))
        else:
            optimizer.step()
            assert not torch.equal(before, flat(model))
    attempts = (
        lambda: thinwire.torch.OneBitAdam(model.parameters(), warm_up=0, group=group),
        lambda: thinwire.torch.OneBitAdam(model.parameters(), betas=(0.9, 1.0), group=group),
        lambda: thinwire.torch.OneBitAdam(model.parameters(), codec="twobit", group=group),
        lambda: optimizer.load_state_dict(torch.optim.AdamW(model.parameters()).state_dict()),
        lambda: optimizer.load_state_dict({**optimizer.state_dict(), "param_groups": []}),
        lambda: optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)]}),
    )
    for attempt in attempts:
        try:
            attempt()
        except thinwire.InvalidError as error:
            errors.append(str(error))
    group.close()
    return same, errors


def test_what_is_not_finite_is_skipped_and_what_does_not_fit_refused(ranks):
    expected = [
        "warm_up is 0",
        "beta2 is 1.0",
        "twobit",
        "the state has no thinwire",
        "groups of [] parameters",
        "takes no more parameters",
    ]
    for same, errors in ranks(2, skipped):
        assert same == [True, True]
        assert len(errors) == len(expected), errors
        for error, part in zip(errors, expected):
            assert part in error


def settled():
    """The first update at which sums of variances that grow as 1 - 0.9^n count as settled."""
    from thinwire._core import is_settled, settling_updates

    apart, updates = settling_updates(0.9), 1
    grown = lambda updates: 1 - 0.9**updates  # noqa: E731
    while updates <= apart or not is_settled(grown(updates - apart), grown(updates)):
        updates += 1
    return updates


def test_a_variance_settles_as_in_rust():
    # crates/train/src/adam/tests.rs has the same number.
    assert settled() == 37
