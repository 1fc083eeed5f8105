"""Rounds in the modes of the core under MindSpore: ranks end alike, and resume from a state bit for bit."""

import pytest

pytestmark = pytest.mark.needs("mindspore")

MODES = [("diloco:3,fragments=2,delay=1", "int4", "float32"), ("pair:2", None, "float16")]


def network(seed, dtype):
    """Parameters of a small network, other ones for each seed."""
    import mindspore as ms
    import numpy as np

    generator = np.random.default_rng(seed)
    shapes = {"wide": (12, 8), "bias": (12,)}
    return [
        ms.Parameter(ms.Tensor(generator.normal(size=shape).astype(dtype)), name=name)
        for name, shape in shapes.items()
    ]


def train(parameters, rank, step):
    """Moves the parameters as a step of training on a rank's own data would."""
    import mindspore as ms
    import numpy as np
    from mindspore import ops

    generator = np.random.default_rng(1000 * rank + step)
    for each in parameters:
        moved = each.asnumpy() - 0.01 * generator.normal(size=each.shape)
        ops.assign(each, ms.Tensor(moved.astype(each.asnumpy().dtype)))


def continued():
    """By mode: the bytes of all parameters of a training that went on, and of one that was resumed."""
    import thinwire
    import thinwire.mindspore

    group, found = thinwire.init(), {}
    for mode, codec, dtype in MODES:
        parameters = network(group.rank, dtype)
        rounds = thinwire.mindspore.Rounds(parameters, mode, codec, group)
        for step in range(5):
            train(parameters, group.rank, step)
            rounds.step()
        state = rounds.state()
        again = network(group.rank + 10, dtype)
        resumed = thinwire.mindspore.Rounds(again, mode, codec, group)
        resumed.load(state)
        for these, mine in ((rounds, parameters), (resumed, again)):
            for step in range(5, 11):
                train(mine, group.rank, step)
                these.step()
            these.finish()
        found[mode] = [
            [each.asnumpy().tobytes().hex() for each in these] for these in (parameters, again)
        ]
        try:
            resumed.load({**state, "mode": "local:2"})
        except thinwire.InvalidError as error:
            assert "is of mode local:2" in str(error)
    late = thinwire.mindspore.Rounds(again, "local:2", group=group)
    late.on_train_begin(None)
    train(again, 0, 0)
    with pytest.raises(thinwire.InvalidError, match="wide has changed between the common start"):
        late.on_train_begin(None)
    group.close()
    return found


def test_ranks_end_alike_and_a_state_continues_bit_for_bit(ranks):
    first, *others = ranks(3, continued)
    # Pairs average when ranks have time, so that two trainings end with different bits.
    assert all(went == again for mode, (went, again) in first.items() if mode != "pair:2")
    assert all(other == first for other in others)
