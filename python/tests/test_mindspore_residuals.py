"""A training that continues from a checkpoint with its residuals is the training that was never stopped."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("mindspore")
CODEC = "topk:0.05"
STEPS = 6
STOP = 3


def stopped(folder: str) -> dict[str, str]:
    """Hashes of the weights without a stop, with one, and with one that forgets residuals."""
    import mindspore as ms

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    models.use("graph")
    group = thinwire.init()
    data = list(models.batches(STEPS, group.rank, group.world))
    whole, optimizer = start(models)
    exchange = thinwire.mindspore.GradExchange(CODEC, group)
    models.train_by_model(whole, optimizer, data, [exchange])
    hashes = {"whole": models.fingerprint(whole)}

    half, optimizer = start(models)
    exchange = thinwire.mindspore.GradExchange(CODEC, group)
    models.train_by_model(half, optimizer, data[:STOP], [exchange])
    path = f"{folder}/residuals"
    assert thinwire.mindspore.save_residuals(exchange, path) == f"{path}.rank{group.rank}.ckpt"
    ms.save_checkpoint(optimizer, f"{folder}/model{group.rank}.ckpt")

    for name, residuals in {"resumed": path, "forgetful": None}.items():
        cell, optimizer = start(models)
        saved = ms.load_checkpoint(f"{folder}/model{group.rank}.ckpt")
        ms.load_param_into_net(optimizer, saved)
        exchange = thinwire.mindspore.GradExchange(CODEC, group, residuals=residuals)
        models.train_by_model(cell, optimizer, data[STOP:], [exchange])
        hashes[name] = models.fingerprint(cell)
    return hashes


def start(models):
    """A network and its optimizer."""
    cell = models.network()
    return cell, models.momentum(cell)


def test_a_resumed_training_continues_bit_for_bit(ranks, tmp_path):
    first, second = ranks(2, stopped, arguments=[str(tmp_path)])
    assert first == second
    assert first["resumed"] == first["whole"]
    assert first["forgetful"] != first["whole"]


def exchanged() -> str:
    """What loading another rank's residuals says."""
    import mindspore as ms

    import thinwire
    import thinwire.mindspore

    group = thinwire.init()
    parameter = ms.Parameter(ms.ops.zeros((40, 50), ms.float32), name="weight")
    average = thinwire.mindspore.exchange([parameter], CODEC, group)
    average((ms.ops.ones((40, 50), ms.float32),))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(thinwire.mindspore.save_residuals(average, f"{folder}/r"))
        file.rename(file.with_name(f"q.rank{group.rank}.ckpt"))
        thinwire.mindspore.load_residuals(average, f"{folder}/q")
        file.with_name(f"q.rank{group.rank}.ckpt").rename(file)
        group.rank_before = group.rank
        average.group = Other()
        average.group.core = group.core
        file.rename(file.with_name(f"r.rank{Other.rank}.ckpt"))
        with pytest.raises(thinwire.InvalidError) as caught:
            thinwire.mindspore.load_residuals(average, f"{folder}/r")
    return str(caught.value).rpartition("/")[2]


class Other:
    """What residuals look at in a group."""

    rank, world = 5, 2


def test_residuals_of_another_rank_are_refused(ranks):
    for rank, said in enumerate(ranks(2, exchanged)):
        assert said.startswith(f"r.rank5.ckpt is of rank {rank} of 2, expected rank 5 of 2 (hint:")


def strange(folder: str) -> dict[str, str]:
    """What loading files that are none of this exchange's says."""
    import mindspore as ms

    import thinwire
    import thinwire.mindspore

    def exchange(name: str, *shape: int, codec: str = CODEC):
        parameter = ms.Parameter(ms.ops.zeros(shape, ms.float32), name=name)
        average = thinwire.mindspore.exchange([parameter], codec, group)
        average((ms.ops.ones(shape, ms.float32),))
        return average

    group = thinwire.init()
    mine, rank = exchange("weight", 40, 50), group.rank
    thinwire.mindspore.save_residuals(exchange("other", 40, 50), f"{folder}/name")
    thinwire.mindspore.save_residuals(exchange("weight", 50, 50), f"{folder}/shape")
    weights = [{"name": "weight", "data": ms.Tensor([1.0])}]
    ms.save_checkpoint(weights, f"{folder}/model.rank{rank}.ckpt")
    Path(f"{folder}/corrupt.rank{rank}.ckpt").write_bytes(bytes(range(256)))
    file = Path(thinwire.mindspore.save_residuals(mine, f"{folder}/short"))
    if rank == 1:
        file.chmod(0o600)
        os.truncate(file, file.stat().st_size // 2)
    thinwire.mindspore.save_residuals(exchange("weight", 40, 50, codec="int4"), f"{folder}/int4")
    group.barrier()  # loading looks at rank 0's file, which says how many have saved
    before, said = mine.synchronizer.state(), {}
    for name, spoil in ways(mine, folder).items():
        if rank == 1:
            spoil(Path(f"{folder}/{name}.rank1.ckpt"))
        else:
            thinwire.mindspore.save_residuals(mine, f"{folder}/{name}")
    group.barrier()
    names = ("name", "shape", "model", "corrupt", "missing", "short", "int4")
    for name in (*names, *ways(mine, folder)):
        try:
            thinwire.mindspore.load_residuals(mine, f"{folder}/{name}")
        except thinwire.InvalidError as error:
            said[name] = str(error)
    assert mine.synchronizer.state() == before
    return said


def ways(mine, folder: str) -> dict:
    """Functions that write a broken file of residuals to a path."""
    import mindspore as ms
    import numpy as np

    import thinwire.mindspore

    sound = Path(thinwire.mindspore.save_residuals(mine, f"{folder}/sound")).read_bytes()
    plan, tensors = mine.synchronizer.state()
    kept = {
        name: np.frombuffer(data, np.float32).reshape(shape)
        for name, (shape, data) in tensors.items()
    }
    ranks = np.array([mine.group.rank, mine.group.world], np.int32)

    def saved(plan=plan, ranks=ranks, **changes):
        arrays = {"thinwire.ranks": ranks, **{**kept, **changes}}
        entries = [{"name": name, "data": ms.Tensor(each)} for name, each in arrays.items()]
        return lambda path: ms.save_checkpoint(
            entries, str(path), append_dict={"thinwire.plan": plan}
        )

    def flipped(part):
        place = int(part * len(sound))
        octets = sound[:place] + bytes([sound[place] ^ 64]) + sound[place + 1 :]
        return lambda path: path.write_bytes(octets)

    owed = {"residual.weight": kept["residual.weight"]}
    return {
        "empty": lambda path: path.write_bytes(b""),
        "cut": lambda path: path.write_bytes(sound[:-40]),
        "flip": flipped(0.3),
        "late flip": flipped(0.9),
        "folder": lambda path: path.mkdir(),
        "pipe": lambda path: os.mkfifo(path),
        "loop": lambda path: path.symlink_to(path),
        "half": saved(**{name: each.astype(np.float16) for name, each in owed.items()}),
        "whole": saved(**{name: each.astype(np.int32) for name, each in owed.items()}),
        "nan": saved(**{name: each * np.nan for name, each in owed.items()}),
        "flat": saved(**{name: each.reshape(-1)[1:] for name, each in owed.items()}),
        "another step": saved(step=kept["step"] + np.float32([0, 1])),
        "no step": saved(step=kept["step"] + np.float32(0.5)),
        "stranger": saved(**{"residual.other": np.ones(3, np.float32)}),
        "no plan": saved(plan=plan[:-5]),
        "one number": saved(ranks=ranks[:1]),
        "another rank": saved(ranks=ranks[::-1] * 0 + [7, 2]),
        "another world": saved(ranks=ranks * 0 + [1, 3]),
    }


def test_what_is_no_file_of_this_model_is_refused_and_changes_nothing(ranks, tmp_path):
    for rank, said in enumerate(ranks(2, strange, arguments=[str(tmp_path)])):
        short = f"cannot read the residuals in {tmp_path}/short.rank1.ckpt: "
        assert said["short"].removeprefix("" if rank else "rank 1 says: ").startswith(short)
        assert "training with codec int4, this one has codec topk:0.05" in said["int4"]
        assert "another model: it has 'residual.other'" in said["name"]
        assert "residual.weight has 2500 elements, expected 2000" in said["shape"]
        assert said["model"] == f"{tmp_path}/model.rank0.ckpt is not a file of save_residuals"
        assert len(said) == 25
        for line in said.values():
            assert "\n" not in line
        assert rank or "step 1 on this rank, 2 on rank 1" in said["another step"]
        for name in ("corrupt", "missing"):
            assert said[name].startswith(f"cannot read the residuals in {tmp_path}/{name}")
            assert "\n" not in said[name]


SHAPE = (40, 50)


def exchange(group, codec=CODEC):
    """An exchange of one parameter, with momentum."""
    import mindspore as ms

    import thinwire.mindspore

    parameter = ms.Parameter(ms.ops.zeros(SHAPE, ms.float32), name="weight")
    return thinwire.mindspore.exchange([parameter], codec, group, momentum_correction=0.5)


def owed(average) -> dict[str, list[float]]:
    """What a rank owes."""
    import numpy as np

    tensors = average.synchronizer.state()[1]
    return {name: np.frombuffer(data, np.float32).tolist() for name, (_, data) in tensors.items()}


def saves(folder: str) -> dict[str, list[float]]:
    """What a rank saves after two steps."""
    import mindspore as ms
    import numpy as np

    import thinwire
    import thinwire.mindspore

    group = thinwire.init()
    average, generator = exchange(group), np.random.default_rng(group.rank)
    for _ in range(2):
        average((ms.Tensor(generator.standard_normal(SHAPE).astype(np.float32)),))
    thinwire.mindspore.save_residuals(average, f"{folder}/r")
    return owed(average)


def goes_on(folder: str) -> tuple[dict[str, list[float]], str]:
    """What another number of ranks has, and what is said where a file is missing."""
    import thinwire
    import thinwire.mindspore

    group = thinwire.init()
    average = exchange(group)
    thinwire.mindspore.load_residuals(average, f"{folder}/r")
    found = owed(average)
    group.barrier()
    last = Path(f"{folder}/r.rank2.ckpt")
    if group.rank == 0 and last.exists():
        last.unlink()
    group.barrier()
    said = "nothing"
    try:
        thinwire.mindspore.load_residuals(average, f"{folder}/r")
    except thinwire.InvalidError as error:
        said = str(error)
    assert owed(average) == found
    return found, said


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3)])
def test_what_ranks_owe_together_stays_whatever_their_number(ranks, tmp_path, before, after):
    import numpy as np

    old = ranks(before, saves, arguments=[str(tmp_path)])
    new = ranks(after, goes_on, arguments=[str(tmp_path)])
    for name in ("residual.weight", "momentum.weight"):
        nothing = [0.0] * (SHAPE[0] * SHAPE[1])
        was = np.sum([tensors[name] for tensors in old], axis=0)
        now = np.sum([tensors.get(name, nothing) for tensors, _ in new], axis=0)
        np.testing.assert_allclose(now, was, rtol=0, atol=1e-5)
        assert np.any(was)
    assert all(tensors["step"] == old[0]["step"] for tensors, _ in new)
    if before == 3:
        assert "cannot read the residuals in" in new[0][1] and "r.rank2.ckpt" in new[0][1]
