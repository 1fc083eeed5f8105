"""A module with any operators and arguments is refused by name, or trained as torch trains it."""

import json
import os
import re

import pytest

import import_law as law

pytestmark = pytest.mark.needs("torch", "safetensors")

# THINWIRE_SEEDS=7,8,9 draws other modules than those of every run.
SEEDS = [int(seed) for seed in os.environ.get("THINWIRE_SEEDS", "1,2").split(",")]
COUNT = 12
# A line names an operator, what changes its gradient, or says that rows of the batch are mixed.
NAMED = (
    r"aten\.\w+|node \d+ '\w|autograd\.Function Reversed|register_hook|wrap_with_set_grad|batch|"
    r"the forward of Drawn"
)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_drawn_module_is_refused_by_name_or_has_torchs_logits_and_gradients(seed, command):
    import numpy
    import torch
    from safetensors.numpy import load_file
    from safetensors.torch import save_file

    import export_draws
    import thinwire.torch

    x, y = law.images(export_draws.IMAGE)
    numpy.savez_compressed(command.folder / "images.npz", x=x, y=y)
    images, labels = (torch.from_numpy(part) for part in next(law.batches_of_images(x, y)))
    flags = ["--model", "model.json", "--weights", "model.safetensors", "--data", "images.npz"]
    flags += ["--batch", law.IMAGE_ROWS, "--steps", "1", "--ranks", "1", "--codec", "none"]
    flags += ["--clip", "0", "--seed", law.SEED, "--validation-batches", "0", "--link", "none"]
    accepted = 0
    for names, module in export_draws.modules(seed, COUNT):
        example = (torch.rand(2, *export_draws.IMAGE),)
        before = {name: value.clone() for name, value in module.state_dict().items()}
        try:
            thinwire.torch.export_graph(module, example, command.folder / "model.json")
        except thinwire.InvalidError as error:
            said = str(error)
            assert re.search(NAMED, said) and "\n" not in said and len(said) < 500, (names, said)
            continue
        accepted += 1
        values = module.state_dict()
        assert all(torch.equal(values[name], value) for name, value in before.items())
        read = {tensor["name"] for tensor in law.shown(command)["trained"]}
        weights = {name: p for name, p in module.named_parameters() if name in read}
        save_file({name: p.detach() for name, p in weights.items()}, command.folder / flags[3])
        run = law.found(json.loads(command("train", *flags, "--report", "none", "--json")))
        loss = torch.nn.functional.cross_entropy(module(images), labels)
        loss.backward()
        assert run == pytest.approx([loss.item()], abs=1e-4), names
        kept = command.folder / "thinwire-checkpoints" / "step-000001" / "optimizer.safetensors"
        law.check_gradients(load_file(kept), {name: p.grad.numpy() for name, p in weights.items()})
    assert accepted or seed not in (1, 2), "a law of refusals alone says nothing"
