"""States of another number of ranks: what all ranks owe together stays."""

import pytest

pytestmark = pytest.mark.needs("torch")

OPTIONS = {
    "topk": {"codec": "topk:0.05", "momentum_correction": 0.9, "warmup_steps": 2},
    "ef21": {"codec": "int4", "feedback": "ef21"},
    "powersgd": {"codec": "powersgd:2", "warmup_steps": 0},
    "auto": {"codec": "auto"},
}
SUMMED = ("residual.", "shift.", "momentum.")


def fresh(kind):
    """A training at its beginning, with its hook."""
    import thinwire.torch
    from torch_models import Training, wrapped

    hook, function = thinwire.torch.hook(**OPTIONS[kind])
    return Training("mlp", wrapped("mlp", (hook, function)), momentum=0.0), hook


def mine(hook):
    """The tensors of this rank's state, and all else of it but the number of ranks."""
    (entry,) = hook.state_dict().values()
    plan, tensors, *rest, _ = entry
    return {name: values.tolist() for name, values in tensors.items()}, [plan, rest]


def saves(folder):
    """Trains and saves in files of each rank and as one checkpoint; what was saved."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint

    dist.init_process_group("gloo")
    saved = {}
    for kind in OPTIONS:
        training, hook = fresh(kind)
        training.run(5)
        torch.save(hook.state_dict(), f"{folder}/{kind}.{dist.get_rank()}.pt")
        parts = {"model": training.model, "hook": hook}
        checkpoint.save(parts, checkpoint_id=f"{folder}/{kind}")
        saved[kind] = mine(hook)
    dist.destroy_process_group()
    return saved


def goes_on(folder, before):
    """What this rank has after loading in either way, and a hash of its model after some steps."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint

    import thinwire.torch
    from torch_models import digest

    dist.init_process_group("gloo")
    results = {}
    for kind in OPTIONS:
        training, hook = fresh(kind)
        parts = {
            "model": training.model,
            "hook": thinwire.torch.resharded(hook, f"{folder}/{kind}"),
        }
        checkpoint.load(parts, checkpoint_id=f"{folder}/{kind}")
        stored = mine(hook)
        files = {}
        for rank in range(before):
            files |= torch.load(f"{folder}/{kind}.{rank}.pt", weights_only=True)
        hook.load_state_dict(files)
        assert mine(hook) == stored
        training.run(3)
        results[kind] = (*stored, digest(training.model))
    dist.destroy_process_group()
    return results


def sums(states):
    """The sum over ranks of what is owed, by name."""
    import numpy

    total = {}
    for tensors in states:
        for name, values in tensors.items():
            if name.startswith(SUMMED):
                total[name] = total.get(name, 0) + numpy.array(values, numpy.float64)
    return total


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (2, 2)])
def test_what_ranks_owe_together_stays_whatever_their_number(ranks, tmp_path, before, after):
    import numpy

    old = ranks(before, saves, arguments=[str(tmp_path)])
    new = ranks(after, goes_on, arguments=[str(tmp_path), before])
    for kind in OPTIONS:
        was, now = (sums(rank[kind][0] for rank in each) for each in (old, new))
        assert was.keys() == now.keys()
        for name in was:
            numpy.testing.assert_allclose(now[name], was[name], rtol=0, atol=1e-6, err_msg=name)
        for rank in new:
            alike = {name: value for name, value in rank[kind][0].items() if name not in was}
            assert alike.items() <= old[0][kind][0].items()
            assert rank[kind][1] == old[0][kind][1]
        assert len({rank[kind][2] for rank in new}) == 1, kind
    assert any(name.startswith("momentum.") for name in sums([old[0]["topk"][0]]))
    assert any(name.startswith("factor.") for name in old[0]["powersgd"][0])


class Ranks:
    """What a state looks at in a group."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world


def entry(value=1.0, plan="{}", buckets=(("a",),), world=3, **tensors):
    """What one rank has saved."""
    import torch

    owed = {"residual.a": torch.full((4,), value), **tensors}
    return (plan, owed, [list(each) for each in buckets], None, world)


def test_what_does_not_belong_together_is_refused():
    import torch

    import thinwire
    from thinwire.torch import state

    factor = torch.ones(2)
    refusals = {
        "the state is of 3 ranks, this job has 2: rank0 needs rank0, rank2, but rank2 is missing": {
            "rank0": entry(),
            "rank1": entry(),
        },
        "entries of 2 and of 3 ranks": {"rank0": entry(), "rank1": entry(world=2)},
        "plan and buckets of rank0 and rank2": {"rank0": entry(), "rank2": entry(plan="[]")},
        "buckets of rank0 and rank2": {"rank0": entry(), "rank2": entry(buckets=(("b",),))},
        "factor.a is not the same in the states of rank 0 and rank 2": {
            "rank0": entry(**{"factor.a": factor}),
            "rank2": entry(**{"factor.a": 2 * factor}),
        },
        "residual.a of rank 2 in the state has 3 elements, expected 4": {
            "rank0": entry(),
            "rank2": entry(**{"residual.a": torch.ones(3)}),
        },
        "residual.a in the state holds NaN": {
            "rank0": entry(),
            "rank2": entry(value=float("nan")),
        },
    }
    for text, entries in refusals.items():
        with pytest.raises(thinwire.InvalidError, match=text) as caught:
            state.for_rank(Ranks(0, 2), entries)
        assert "\n" not in str(caught.value)


def test_new_ranks_owe_nothing_and_old_ones_are_added_up():
    from thinwire.torch import state

    entries = {f"rank{rank}": entry(value=2.0**rank) for rank in range(3)}
    found = [state.for_rank(Ranks(rank, 2), entries).tensors for rank in range(2)]
    assert [each["residual.a"].tolist() for each in found] == [[5.0] * 4, [2.0] * 4]
    assert state.for_rank(Ranks(4, 5), {"rank0": entry()}).tensors == {}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_folder_without_a_state_is_named(tmp_path):
    import torch
    import torch.distributed.checkpoint as checkpoint

    import thinwire.torch

    checkpoint.save({"model": {"a": torch.ones(2)}}, checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(thinwire.InvalidError, match="no rank has saved a state of Thinwire in"):
        thinwire.torch.resharded(None, tmp_path)
