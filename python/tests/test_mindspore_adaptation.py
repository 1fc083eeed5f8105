"""Policies under MindSpore: the noise scale of known gradients, and a batch that all ranks change."""

import pytest

import adaptations

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
    adaptation = thinwire.mindspore.Adaptation(
        policies, batch=4, rows=adaptations.ROWS, group=group
    )
    seen = []
    for step in range(steps):
        seen.append((adaptation.batch, adaptation.rate))
        adaptation.step(gradients(adaptation.part, group.rank, step))
    group.close()
    return seen, adaptation.noise_scale, adaptation.changes, adaptation.rows_left


def by_text():
    """By the shipped policy."""
    return adapted([adaptations.BY_TEXT], 100)


def by_function():
    """By a function of the user's."""
    return adapted([adaptations.by_function], 12)


def test_the_batch_follows_the_noise_scale_on_all_ranks(ranks):
    # 4096 over 369 is 11.
    asked = adaptations.expect_by_text(ranks(2, by_text), batch=4, noise=(8, 16))
    assert max(asked.values()) <= 16


def test_functions_are_policies(ranks):
    adaptations.expect_by_function(ranks(2, by_function), batch=4)


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
