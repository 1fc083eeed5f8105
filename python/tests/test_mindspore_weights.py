"""Training with thinwire.mindspore gives the weights that MindSpore's own reducer and one process give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import launch

pytestmark = pytest.mark.needs("mindspore")
STEPS = 40
CODECS = ("none", "topk:0.05")


def every_way(codec: str, steps: int) -> dict[str, str]:
    """Hashes of the weights after training in every way and mode."""
    import mindspore_models as models
    import thinwire

    group = thinwire.init()
    hashes = {}
    for mode in models.MODES:
        models.use(mode)
        for way in models.WAYS:
            cell = models.trained(way, codec, group, steps)
            hashes[f"{mode} {way}"] = models.fingerprint(cell)
    return hashes


@pytest.mark.parametrize("codec", CODECS)
def test_ranks_modes_and_ways_end_bit_identical(ranks, codec):
    first, second = ranks(2, every_way, arguments=[codec, 12])
    assert first == second
    assert len(set(first.values())) == 1, first


def one_process(codec: str, steps: int) -> dict[str, str]:
    """The hash of the weights of a world of one, and that of training without us."""
    import mindspore_models as models
    import thinwire

    models.use("graph")
    alone = models.network()
    models.train_by_cell(alone, models.momentum(alone), models.batches(steps), None)
    averaged = models.trained("callback", codec, thinwire.init(), steps)
    return {"alone": models.fingerprint(alone), "averaged": models.fingerprint(averaged)}


def test_a_world_of_one_changes_nothing(ranks):
    (hashes,) = ranks(1, one_process, arguments=["none", 5])
    assert hashes["alone"] == hashes["averaged"]


def trained_before() -> list[str]:
    """Hashes after Model.train alone and then, with the same model, Model.train with our callback."""
    from mindspore.train import Model

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    group = thinwire.init()
    hashes = []
    for mode in models.MODES:
        models.use(mode)
        cell = models.network()
        model = Model(cell, models.loss_function(), models.momentum(cell))
        alone = models.dataset(models.batches(2, group.rank, group.world))
        model.train(1, alone, dataset_sink_mode=False)
        assert group.all_gather(models.arrays(cell)[0].ravel()[:1]).ptp() > 0
        exchange = thinwire.mindspore.GradExchange("none", group)
        for _ in range(2):
            together = models.dataset(models.batches(2, group.rank, group.world))
            model.train(1, together, callbacks=[exchange], dataset_sink_mode=False)
        hashes.append(models.fingerprint(cell))
    return hashes


def test_a_model_that_was_compiled_before_is_exchanged(ranks):
    first, second = ranks(2, trained_before)
    assert first == second


def built_in_and_ours(folder: str) -> None:
    """Under msrun: hashes after training with MindSpore's reducer, with ours, and with the joint batch."""
    import mindspore as ms
    import numpy as np
    from mindspore.communication import init

    import mindspore_models as models
    import thinwire

    init()
    group = thinwire.init()
    answer = {}
    for mode in models.MODES:
        models.use(mode)
        cell = models.network()
        ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
        mine = models.batches(STEPS, group.rank, group.world)
        models.train_by_cell(cell, models.momentum(cell), mine, None)
        ms.reset_auto_parallel_context()
        answer[f"{mode} built in"] = models.fingerprint(cell)
        answer[f"{mode} ours"] = models.fingerprint(
            models.trained("callback", "none", group, STEPS)
        )
        joint = models.network()
        models.train_by_cell(joint, models.momentum(joint), models.batches(STEPS), None)
        differences = [
            float(np.abs(one - other).max())
            for one, other in zip(models.arrays(cell), models.arrays(joint))
        ]
        answer[f"{mode} difference"] = max(differences)
    Path(folder, f"{group.rank}.json").write_text(json.dumps(answer))


def test_weights_equal_the_built_in_reducers_under_msrun(tmp_path):
    first, second = under_msrun(built_in_and_ours, tmp_path, timeout=600)
    assert first == second
    for mode in ("graph", "pynative"):
        assert first[f"{mode} ours"] == first[f"{mode} built in"]
        assert first[f"{mode} difference"] <= 1e-6
    assert first["graph ours"] == first["pynative ours"]


def under_msrun(function, folder: Path, timeout: float) -> list[dict]:
    """Runs a function in two workers of msrun, with its scheduler, and returns what they wrote."""
    task = {"file": __file__, "function": function.__name__, "arguments": [str(folder)]}
    task |= {"timeout_s": timeout, "result": str(folder / "nothing.json")}
    with launch.reserved_ports(2) as port:
        command = ["msrun", "--worker_num=2", "--local_worker_num=2", "--join=True"]
        command += [f"--master_port={port}"]
        command += [f"--log_dir={folder}", str(launch.RANK), json.dumps(task)]
        own = str(Path(sys.executable).parent)
        added = {"RANK": None, "WORLD_SIZE": None, "PATH": f"{own}:{os.environ['PATH']}"}
        environment = launch.environment(0, 1, port, added)
        ended = subprocess.run(
            command, env=environment, capture_output=True, timeout=timeout, cwd=folder, check=False
        )
    answers = [folder / f"{rank}.json" for rank in range(2)]
    logs = "".join(file.read_text(errors="replace") for file in folder.glob("worker_*.log"))
    assert all(file.exists() for file in answers), f"{ended.stdout.decode()}{logs}"
    return [json.loads(file.read_text()) for file in answers]
