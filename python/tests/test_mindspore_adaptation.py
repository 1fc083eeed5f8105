"""Policies under MindSpore: the noise scale of known gradients, and a batch that all ranks change."""

import pytest

pytestmark = pytest.mark.needs("mindspore")

ELEMENTS = (64, 64)


def gradients(rows, rank, step):
    """The mean gradient of rows that are a constant and noise: |G|² = 369, S = 4096; in two parameters."""
    import mindspore as ms
    import numpy as np

    noise = np.random.default_rng(1000 * step + rank).normal(size=(rows, *ELEMENTS))
    mean = (0.3 + noise).mean(0).astype(np.float32)
    return ms.Tensor(mean[:40]), ms.Tensor(mean[40:])


def adapted(policies, steps):
    """Batches and rates before every step, the noise scale, and what rank 0 has noted."""
    import thinwire
    import thinwire.mindspore

    group = thinwire.init()
    adaptation = thinwire.mindspore.Adaptation(policies, batch=4, rows=10**6, group=group)
    seen = []
    for step in range(steps):
        seen.append((adaptation.batch, adaptation.rate))
        adaptation.step(gradients(adaptation.part, group.rank, step))
    group.close()
    return seen, adaptation.noise_scale, adaptation.changes, adaptation.rows_left


def by_text():
    """By the shipped policy."""
    return adapted(["noise-scale:max=64,every=30,rate=linear"], 100)


def by_function():
    """By a function of the user's."""

    def policy(seen):
        if seen["step"] == 5:
            return {"batch": 8, "rate": 1.5, "reason": "five steps are enough"}
        return None

    return adapted([policy], 12)


def test_the_batch_follows_the_noise_scale_on_all_ranks(ranks):
    first, *others = ranks(2, by_text)
    seen, noise, changes, left = first
    assert all(other[0] == seen and other[1] == noise for other in others)
    # 4096 over 369 is 11.
    assert 8 < noise < 16
    asked = {change["step"]: change["batch"] for change in changes}
    # It is known after ten sketches.
    assert asked[60] == 8 and max(asked.values()) <= 16
    batches = [batch for batch, _ in seen]
    # It is told with the next step, and taken when the one after that ends.
    assert batches[:62] == [4] * 62 and batches[62] == 8
    assert seen[62][1] == 2
    assert left == 10**6 - sum(batches)


def test_functions_are_policies(ranks):
    for seen, _, changes, _ in ranks(2, by_function)[:1]:
        assert seen[5] == [4, 1.0] and seen[7] == [8, 1.5]
        assert changes == [{"step": 5, "batch": 8, "rate": 1.5, "reason": "five steps are enough"}]


def refused():
    """The errors of policies that cannot be followed."""
    import thinwire
    import thinwire.mindspore

    group, errors = thinwire.init(), []
    for policies, batch in ((["noise"], 4), (["deadline:60"], 4), (["noise-scale:max=64"], 5)):
        try:
            thinwire.mindspore.Adaptation(policies, batch=batch, rows=100, group=group)
        except thinwire.InvalidError as error:
            errors.append(str(error))
    group.close()
    return errors


def test_policies_that_cannot_be_followed_are_refused(ranks):
    unknown, fixed, odd = ranks(2, refused)[0]
    assert unknown.startswith("unknown policy 'noise', expected noise-scale:max=ROWS")
    assert fixed.startswith("policies deadline:60 without resize= and ranks_allowed=")
    assert odd == "a batch of 5 rows on 2 ranks, expected a multiple of 2"


def norms():
    """The squared norm that a sketch tells, and the exact one."""
    import numpy as np

    from thinwire.mindspore.adaptation import sketch

    both = gradients(4, 0, 0)
    exact = sum(float(np.square(each.asnumpy()).sum()) for each in both)
    return sketch(both, 0)[0], exact


def test_a_sketch_is_of_all_gradients(ranks):
    told, exact = ranks(1, norms)[0]
    assert told == pytest.approx(exact, rel=1e-5)
