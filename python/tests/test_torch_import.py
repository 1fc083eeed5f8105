"""Imported models are the models: of torch's parameters, and they learn as torch does."""

import copy

import pytest

import import_law as law
from imported_models import IMAGES, OWN, TEXT, TOKENS, built

pytestmark = pytest.mark.needs("torch", "transformers", "safetensors")

# Rows and columns of images, where they are not 32.
SIDES = {"vit": 16}


def exported(command, model, example):
    """What the command shows of the model's file."""
    import thinwire.torch

    thinwire.torch.export_graph(model, (example,), command.folder / "model.json")
    report = law.shown(command)
    law.check_parameters(
        report, {name: list(value.shape) for name, value in model.named_parameters()}
    )
    return report


@pytest.mark.parametrize("name", TEXT)
def test_a_model_of_text_follows_torch_under_every_plan(name, command):
    import torch

    model = built(name)
    report = exported(command, model, torch.zeros(2, TOKENS, dtype=torch.long))
    # Rotary positions are an operator, but where they are stretched.
    assert bool(report["frozen"]) == (name == "llama_stretched")
    command("plan", "make", *law.planned(command, 16, 4, 2))
    model.save_pretrained(command.folder)
    if name == "gpt_neox":  # transformers writes its head under an older name
        save_values(model, command.folder / "model.safetensors")
    (command.folder / "text").write_bytes(law.text())

    def loss(model, tokens, targets, _pieces):
        logits = model(tokens).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def training(pieces):
        return torch_training(model, law.windows(law.text()), loss, pieces)

    flags = ["--data", "text", "--sample-bytes", "0"]
    check_return(model, law.check_training(command, law.ROWS, flags, training))


@pytest.mark.parametrize("name", [*IMAGES, *OWN])
def test_a_model_of_images_follows_torch_under_every_plan(name, command):
    import numpy
    import torch

    # Batch norm trains by the statistics of its batch, as torch's does in training.
    model = built(name).train()
    size = SIDES.get(name, 32)
    report = exported(command, model, torch.zeros(2, 3, size, size))
    assert not report["frozen"]
    command("plan", "make", *law.planned(command, 16, 4, 2))
    save_values(model, command.folder / "model.safetensors")
    x, y = law.images((3, size, size))
    numpy.savez_compressed(command.folder / "images.npz", x=x, y=y)

    def loss(model, images, labels, pieces):
        # Each micro-batch has statistics of its own.
        outputs = [model(part) for part in images.chunk(pieces)]
        logits = [getattr(output, "logits", output) for output in outputs]
        return torch.nn.functional.cross_entropy(torch.cat(logits), labels)

    def training(pieces):
        return torch_training(model, law.batches_of_images(x, y), loss, pieces)

    flags = ["--data", "images.npz"]
    check_return(model, law.check_training(command, law.IMAGE_ROWS, flags, training))


def check_return(model, file):
    """Parameters go back to torch under their names."""
    from safetensors.torch import load_file

    missing = copy.deepcopy(model).load_state_dict(load_file(file), strict=False)
    assert not missing.unexpected_keys


def save_values(model, path):
    from safetensors.torch import save_file

    save_file({name: value.detach() for name, value in model.named_parameters()}, path)


def torch_training(model, batches, loss_of, pieces):
    """What torch finds in a training of so many micro-batches."""
    import torch

    model = copy.deepcopy(model)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    losses, gradients, first = [], {}, {}
    for step, (x, targets) in zip(range(law.STEPS), batches, strict=False):
        loss = loss_of(model, torch.from_numpy(x), torch.from_numpy(targets), pieces)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = law.RATE * (step + 1) / law.WARMUP
        optimizer.step()
        if step == 0:
            named = dict(model.named_parameters())
            gradients = {name: value.grad.numpy().copy() for name, value in named.items()}
            first = {name: value.detach().numpy().copy() for name, value in named.items()}
    return law.Training(losses, gradients, first)
