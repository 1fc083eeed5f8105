"""Policies in PyTorch: the noise scale of known gradients, batches that all ranks change in one step."""

import pytest

import adaptations

pytestmark = pytest.mark.needs("torch")

ELEMENTS = 4096


def noisy(adaptation, model, rank, step):
    """A step whose rows have gradients of a constant and noise: |G|² = 41, S = 4096."""
    import torch

    generator = torch.Generator().manual_seed(step * 100 + rank)
    rows = 0.1 + torch.randn(adaptation.part, ELEMENTS, generator=generator)
    model.weight.grad = None
    (model.weight * rows).sum(1).mean().backward()
    adaptation.step()


def model_of():
    """A model whose gradient is the mean of its rows."""
    import torch

    return torch.nn.Linear(ELEMENTS, 1, bias=False)


def adapted(policies, steps):
    """Batches and rates before every step, the noise scale, and what rank 0 has noted."""
    import os

    import torch
    import torch.distributed as dist

    import thinwire.torch

    dist.init_process_group("gloo")
    try:
        model = model_of()
        torch.manual_seed(0)
        adaptation = thinwire.torch.Adaptation(model, policies, batch=6, rows=adaptations.ROWS)
        seen = []
        for step in range(steps):
            seen.append((adaptation.batch, adaptation.rate))
            noisy(adaptation, model, int(os.environ["RANK"]), step)
        adaptation.close()
        return seen, adaptation.noise_scale, adaptation.changes, adaptation.rows_left
    finally:
        dist.destroy_process_group()


def by_text():
    """By the shipped policy."""
    return adapted([adaptations.BY_TEXT], 130)


def by_function():
    """By a function of the user's."""
    return adapted([adaptations.by_function], 12)


def test_the_batch_follows_the_noise_scale_on_all_ranks(ranks):
    # |G|² is 0.01 · 4096.
    asked = adaptations.expect_by_text(ranks(2, by_text), batch=6, noise=(60, 160))
    assert asked[90] == 24 and max(asked.values()) <= 48


def test_functions_are_policies(ranks):
    adaptations.expect_by_function(ranks(2, by_function), batch=6)


def alone(answers):
    """One rank, which tells itself, with policies that have `answers` by the number of steps before."""
    from thinwire.adaptation import Adapting

    class Alone(Adapting):
        def _tell(self, asked):
            return lambda: [list(asked)]

    policies = [lambda seen, each=each: each.get(seen["step"] - 1) for each in answers]
    return Alone(policies, 4, 1000, (0, 1), None, None)


def test_of_several_policies_the_first_that_asks_for_something_counts():
    answers = [
        {0: {"batch": 8, "rate": 2.0}, 1: {"batch": 16}},
        {0: {"batch": 32, "rate": 9.0}, 1: {"rate": 0.5, "reason": "cooled"}},
        {0: {"rate": 7.0}},
    ]
    adaptation, seen = alone(answers), []
    for _ in range(4):
        adaptation._end_step(0.0)
        seen.append((adaptation.batch, adaptation.rate))
    assert seen == [(4, 1.0), (4, 1.0), (8, 2.0), (16, 0.5)]
    assert adaptation.changes == [
        {"step": 1, "batch": 8, "rate": 2.0},
        {"step": 2, "batch": 16},
        {"step": 2, "rate": 0.5, "reason": "cooled"},
    ]


def test_an_adaptation_continues_from_its_state():
    answers = [{0: {"batch": 8, "rate": 2.0}, 2: {"batch": 16}}]
    ends = set()
    for saved_at in range(6):
        adaptation = alone(answers)
        for step in range(6):
            if step == saved_at:
                state = adaptation.state_dict()
                adaptation = alone(answers)
                adaptation.load_state_dict(state)
            adaptation._end_step(0.0)
        ends.add((adaptation.batch, adaptation.rate, adaptation.rows_left))
    assert ends == {(16, 2.0, 1000 - 3 * 4 - 2 * 8 - 16)}


def test_sketches_of_devices_are_linear_and_right_on_average():
    import torch

    from thinwire.torch.adaptation import of_device, sketch

    one, other = torch.randn(2, 1000, generator=torch.Generator().manual_seed(1))
    for make in (sketch, of_device):
        together = make((one + other) / 2, 3, 7)
        mean = (make(one, 3, 7) + make(other, 3, 7)) / 2
        assert torch.allclose(together[1:], mean[1:], atol=1e-4)
        exact = one.square().sum()
        assert torch.allclose(make(one, 3, 7)[0], exact)
        told = torch.stack([make(one, 3, step)[1:].square().sum() for step in range(400)])
        assert (told.mean() / exact - 1).abs() < 0.05


def refused():
    """The errors of policies that cannot be followed."""
    import torch.distributed as dist

    import thinwire
    import thinwire.torch

    dist.init_process_group("gloo")
    errors = []
    for policies, batch in (
        (["noise"], 4),
        (["deadline:60"], 4),
        ([5], 4),
        (["noise-scale:max=64"], 1),
        (["noise-scale:max=64"], 5),
    ):
        try:
            thinwire.torch.Adaptation(model_of(), policies, batch=batch, rows=100)
        except thinwire.InvalidError as error:
            errors.append(str(error))
    dist.barrier()  # a rank that ends early would break the others' connections
    dist.destroy_process_group()
    return errors


def test_policies_that_cannot_be_followed_are_refused(ranks):
    unknown, fixed, neither, small, odd = ranks(2, refused)[0]
    assert unknown.startswith("unknown policy 'noise', expected noise-scale:max=ROWS")
    assert fixed.startswith("policies deadline:60 need resize= and ranks_allowed=")
    assert neither == "a policy is neither a string nor a function, expected one of them"
    assert small == "batch is 1, expected 2 or more"
    assert odd == "a batch of 5 rows on 2 ranks, expected a multiple of 2"
