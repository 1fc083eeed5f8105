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
    )
    for attempt in attempts:
        try:
            attempt()
        except thinwire.InvalidError as error:
            errors.append(str(error))
    group.close()
    return same, errors


def test_what_is_not_finite_is_skipped_and_what_does_not_fit_refused(ranks):
    expected = ["warm_up is 0", "beta2 is 1.0", "twobit", "the state has no thinwire"]
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
