"""Laws of policies that are the same in all frameworks: policies by text, and functions of the user's.

A framework's test trains under policies on every rank. From each rank comes a list: batch and rate before
every step, the noise scale, what rank 0 has noted, and the rows that are left of `ROWS`.
"""

ROWS = 10**6
BY_TEXT = "noise-scale:max=64,every=30,rate=linear"


def by_function(seen):
    """Asks for a batch of 8 after five steps."""
    if seen["step"] == 5:
        return {"batch": 8, "rate": 1.5, "reason": "five steps are enough"}
    return None


def expect_by_text(results, batch, noise):
    """Checks that the batch has followed a noise scale between two limits on all ranks, under `BY_TEXT`.

    Returns the batches that were asked for, by step.
    """
    (seen, found, changes, left), *others = results
    assert all(other[0] == seen and other[1] == found for other in others)
    least, most = noise
    assert least < found < most
    asked = {change["step"]: change["batch"] for change in changes}
    # It is known after ten sketches.
    assert asked[60] == 2 * batch
    batches = [each for each, _ in seen]
    # It is told with the next step, and taken when the one after that ends.
    assert batches[:62] == [batch] * 62 and batches[62] == 2 * batch
    assert seen[62][1] == 2
    assert left == ROWS - sum(batches)
    return asked


def expect_by_function(results, batch):
    """Checks that all ranks have followed `by_function`."""
    for seen, *_ in results:
        assert seen[5] == [batch, 1.0] and seen[7] == [8, 1.5]
    assert results[0][2] == [
        {"step": 5, "batch": 8, "rate": 1.5, "reason": "five steps are enough"}
    ]
