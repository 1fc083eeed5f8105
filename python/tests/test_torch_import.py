"""Imported models are the models: of torch's parameters, and they learn as torch does."""

import copy
import json
import os
import subprocess
from pathlib import Path

import pytest

from imported_models import IMAGES, OWN, TEXT, TOKENS, built

pytestmark = pytest.mark.needs("torch", "transformers", "safetensors")

ROOT = Path(__file__).parents[2]
STEPS, RATE, WARMUP, SEED = 20, 3e-3, 20, 1
# Rows of a step, of texts and of images: statistics of few images are noise.
ROWS, IMAGE_ROWS = 4, 8

CLUSTER = """
[[device]]
name = "core"
tflops = 0.001
memory_gib = 1
memory_gbyte_per_s = 1

[[level]]
name = "node"
size = {inner}
latency_us = 1
gbit = 100

[[level]]
name = "nodes"
size = {outer}
latency_us = 10
gbit = 1
"""
# Micro-batches and flags of each plan.
PLANS = {
    "data": (1, ["--mesh", "2", "--cuts", "data"]),
    "tensor": (1, ["--mesh", "1,2", "--cuts", "grid"]),
    "pipeline": (2, ["--stages", "2", "--micro-batches", "2"]),
}
# Rows and columns of images, where they are not 32.
SIDES = {"vit": 16}


@pytest.fixture
def command(tmp_path):
    """Runs the command in a folder of the test's own, and returns what it prints."""
    places = [ROOT / "target" / kind / "thinwire" for kind in ("debug", "release")]
    places.insert(0, Path(os.environ.get("THINWIRE_COMMAND", "/nowhere")))
    program = next((place for place in places if place.is_file()), None)
    if program is None:
        pytest.skip("there is no command: cargo build makes it")
    folder = tmp_path / "folder"
    folder.mkdir()

    def run(*arguments):
        ended = subprocess.run(
            [program, *map(str, arguments)], cwd=folder, capture_output=True, text=True, timeout=300
        )
        assert ended.returncode == 0, f"{arguments}: {ended.stderr}"
        return ended.stdout

    run.folder = folder
    return run


def exported(command, model, example):
    """The model's file, and what the command shows of it."""
    import thinwire.torch

    path = command.folder / "model.json"
    thinwire.torch.export_graph(model, (example,), path)
    return json.loads(command("model", "show", path, "--batch", "2", "--json"))


def check_parameters(model, report):
    """Names, shapes and count are those of torch."""
    expected = {name: list(value.shape) for name, value in model.named_parameters()}
    assert {tensor["name"]: tensor["shape"] for tensor in report["trained"]} == expected
    assert report["parameters"] == sum(value.numel() for value in model.parameters())


def planned(command, batch, inner, outer):
    text = CLUSTER.format(inner=inner, outer=outer)
    (command.folder / "cluster.toml").write_text(text)
    machines = ["--cluster", "cluster.toml", "--batch", batch, "--output", "plan.toml"]
    return ["--model", "model.json", "--precision", "single", *machines]


@pytest.mark.parametrize("name", TEXT)
def test_a_model_of_text_follows_torch_under_every_plan(name, command):
    import torch

    model = built(name)
    report = exported(command, model, torch.zeros(2, TOKENS, dtype=torch.long))
    check_parameters(model, report)
    # Rotary positions are an operator, but where they are stretched.
    assert bool(report["frozen"]) == (name == "llama_stretched")
    command("plan", "make", *planned(command, 16, 4, 2))
    model.save_pretrained(command.folder)
    if name == "gpt_neox":  # transformers writes its head under an older name
        save_values(model, command.folder / "model.safetensors")
    # 0 and 1 are padding of some models, whose rows torch does not train where they are looked up.
    text = bytes(2 + (at * at // 7 + at // 3) % 254 for at in range(3000))
    (command.folder / "text").write_bytes(text)
    flags = ["--data", "text", "--sample-bytes", "0"]

    def loss(model, rows, _pieces):
        logits = model(rows[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

    def training(pieces):
        return torch_training(model, windows(text), loss, pieces)

    check_training(command, (model, ROWS), flags, training)


@pytest.mark.parametrize("name", [*IMAGES, *OWN])
def test_a_model_of_images_follows_torch_under_every_plan(name, command):
    import numpy
    import torch

    # Batch norm trains by the statistics of its batch, as torch's does in training.
    model = built(name).train()
    size = SIDES.get(name, 32)
    report = exported(command, model, torch.zeros(2, 3, size, size))
    check_parameters(model, report)
    assert not report["frozen"]
    command("plan", "make", *planned(command, 16, 4, 2))
    save_values(model, command.folder / "model.safetensors")
    draw = numpy.random.default_rng(5)
    x = draw.integers(0, 256, (200, 3, size, size), dtype=numpy.uint8)
    y = draw.integers(0, 10, 200)
    numpy.savez_compressed(command.folder / "images.npz", x=x, y=y)

    def loss(model, batch, pieces):
        # Each micro-batch has statistics of its own.
        outputs = [model(part) for part in batch[0].chunk(pieces)]
        logits = [getattr(output, "logits", output) for output in outputs]
        return torch.nn.functional.cross_entropy(torch.cat(logits), batch[1])

    def training(pieces):
        return torch_training(model, batches_of_images(x, y), loss, pieces)

    check_training(command, (model, IMAGE_ROWS), ["--data", "images.npz"], training)


def check_training(command, trained, flags, training):
    """Losses, gradients and the parameters after the first step are those of torch, and so are the losses
    under every plan."""
    from safetensors.torch import load_file

    model, batch = trained
    flags += [
        "--weights",
        "model.safetensors",
        "--clip",
        "0",
        "--lr",
        RATE,
        "--validation-batches",
        "0",
    ]
    flags += ["--warmup", WARMUP, "--seed", SEED, "--report", "none", "--json", "--link", "none"]
    losses, gradients, first = training(1)
    alone = ["--model", "model.json", "--batch", batch, "--ranks", "1", "--codec", "none"]
    run = json.loads(command("train", *alone, *flags, "--steps", "1"))
    assert found(run) == pytest.approx(losses[:1], abs=1e-4)
    kept = command.folder / "thinwire-checkpoints" / "step-000001"
    means = load_file(kept / "optimizer.safetensors")
    whole = sum(float(gradient.square().sum()) for gradient in gradients.values()) ** 0.5
    for parameter, gradient in gradients.items():
        error = float((means[f"{parameter}.mean"] / 0.1 - gradient).norm())
        # Some gradients are zero but for rounding, such as those of biases of keys.
        assert error <= 1e-3 * float(gradient.norm()) + 1e-6 * whole, parameter
    values = load_file(kept / "model.safetensors")
    assert values.keys() == first.keys()
    missing = copy.deepcopy(model).load_state_dict(values, strict=False)
    assert not missing.unexpected_keys
    for parameter, value in first.items():
        # A step of Adam is as long whatever the gradient, so where that is rounding, so is the step.
        assert float((values[parameter] - value).abs().max()) <= 2.1 * RATE / WARMUP, parameter

    for plan, (pieces, cuts) in PLANS.items():
        command("plan", "price", *planned(command, batch, 2, 1), *cuts)
        rest = ["--plan", "plan.toml", "--steps", STEPS, "--checkpoint-dir", "none"]
        run = json.loads(command("train", *rest, *flags))
        assert found(run) == pytest.approx(training(pieces)[0], abs=1e-3), plan


def save_values(model, path):
    from safetensors.torch import save_file

    save_file({name: value.detach() for name, value in model.named_parameters()}, path)


def found(run):
    return [point["value"] for point in run["losses"]]


def torch_training(model, batches, loss_of, pieces):
    """Losses of every step, the gradients of the first, and the parameters after it."""
    import torch

    model = copy.deepcopy(model)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    losses, gradients, first = [], {}, {}
    for step, batch in zip(range(STEPS), batches, strict=False):
        loss = loss_of(model, batch, pieces)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = RATE * (step + 1) / WARMUP
        optimizer.step()
        if step == 0:
            named = dict(model.named_parameters())
            gradients = {name: value.grad.clone() for name, value in named.items()}
            first = {name: value.detach().clone() for name, value in named.items()}
    return losses, gradients, first


def windows(text):
    """The rows of every step of the first pass, as crates/train/src/data.rs deals them."""
    import torch

    held = text[: len(text) - len(text) // 10]
    offset = below(0x6F66_6673, 0, TOKENS)
    starts = [offset + at * TOKENS for at in shuffled((len(held) - 1 - offset) // TOKENS)]
    for at in range(0, len(starts) - ROWS, ROWS):
        rows = [list(held[start : start + TOKENS + 1]) for start in starts[at : at + ROWS]]
        yield torch.tensor(rows)


def batches_of_images(x, y):
    """The images and labels of every step of the first pass; every tenth image is held out."""
    import torch

    places = [at // 9 * 10 + at % 9 for at in shuffled(len(y) - len(y) // 10)]
    for at in range(0, len(places) - IMAGE_ROWS, IMAGE_ROWS):
        rows = places[at : at + IMAGE_ROWS]
        yield torch.tensor(x[rows]).float() / 255, torch.tensor(y[rows])


def shuffled(count):
    order = list(range(count))
    for last in range(count - 1, 0, -1):
        other = below(0x7368_7566, last, last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def below(stream, element, bound):
    """A number below a bound, as `Key::below` of crate wire draws it: Philox4x32-10."""
    mask = 0xFFFF_FFFF
    counter, key = [element // 4, 0, stream, 0], [SEED, 0]
    for _ in range(10):
        low, high = counter[0] * 0xD251_1F53, counter[2] * 0xCD9E_8D57
        counter = [
            high >> 32 ^ counter[1] ^ key[0],
            high & mask,
            low >> 32 ^ counter[3] ^ key[1],
            low & mask,
        ]
        key = [key[0] + 0x9E37_79B9 & mask, key[1] + 0xBB67_AE85 & mask]
    return counter[element % 4] * bound >> 32
