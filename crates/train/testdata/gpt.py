"""Golden values of a GPT of bytes, by PyTorch in f64: gradients of a batch, losses of 20 steps.

python crates/train/testdata/gpt.py > crates/train/testdata/gpt.json
"""

import json
import math

import torch
from torch.nn.functional import cross_entropy, gelu, layer_norm, scaled_dot_product_attention

torch.set_default_dtype(torch.float64)
CONTEXT, WIDTH, LAYERS, HEADS, VOCABULARY, ROWS, STEPS = 12, 16, 2, 2, 256, 4, 20
PEAK, FLOOR, WARMUP, SCHEDULED = 2e-2, 2e-3, 2, 60
SAMPLES = 7  # of every gradient, this many elements apart


def shapes():
    """Names and shapes of all parameters."""
    yield "embedding.table", (VOCABULARY, WIDTH)
    yield "embedding.positions", (CONTEXT, WIDTH)
    for layer in range(LAYERS):
        block = f"block.{layer}"
        for part in ("query", "key", "value", "output"):
            yield f"{block}.attention.{part}.weight", (WIDTH, WIDTH)
            yield f"{block}.attention.{part}.bias", (WIDTH,)
        yield f"{block}.feed.up.weight", (WIDTH, 4 * WIDTH)
        yield f"{block}.feed.up.bias", (4 * WIDTH,)
        yield f"{block}.feed.down.weight", (4 * WIDTH, WIDTH)
        yield f"{block}.feed.down.bias", (WIDTH,)
        for half in ("attention", "feed"):
            yield f"{block}.{half}.norm.gain", (WIDTH,)
            yield f"{block}.{half}.norm.bias", (WIDTH,)
    yield "head.weight", (WIDTH, VOCABULARY)
    yield "head.norm.gain", (WIDTH,)
    yield "head.norm.bias", (WIDTH,)


def start(index, name, shape):
    """Values between -0.2 and 0.2, around one for gains; the same formula is in the test."""
    at = torch.arange(math.prod(shape))
    values = ((at * 7919 + index * 104729) % 2003) / 2003 * 0.4 - 0.2
    return (
        (values + name.endswith("gain"))
        .to(torch.float32)
        .to(torch.float64)
        .reshape(shape)
        .requires_grad_()
    )


def batch(seed):
    """Tokens and targets of a step."""
    at = torch.arange(ROWS * (CONTEXT + 1))
    text = (97 + (at * at * 31 + at * 7 + seed * 11) % 26).reshape(ROWS, CONTEXT + 1)
    return text[:, :-1], text[:, 1:]


def norm(p, name, x):
    """Layer norm."""
    return layer_norm(x, (WIDTH,), p[f"{name}.gain"], p[f"{name}.bias"], 1e-5)


def linear(p, name, x):
    """Affine map."""
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def loss_of(p, tokens, targets):
    """Mean cross-entropy of the next byte."""
    x = p["embedding.table"][tokens] + p["embedding.positions"][: tokens.shape[1]]
    for layer in range(LAYERS):
        attention, feed = f"block.{layer}.attention", f"block.{layer}.feed"
        h = norm(p, f"{attention}.norm", x)
        parts = [linear(p, f"{attention}.{part}", h) for part in ("query", "key", "value")]
        parts = [part.reshape(ROWS, -1, HEADS, WIDTH // HEADS).transpose(1, 2) for part in parts]
        mixed = scaled_dot_product_attention(*parts, is_causal=True)
        x = x + linear(p, f"{attention}.output", mixed.transpose(1, 2).reshape(x.shape))
        up = linear(p, f"{feed}.up", norm(p, f"{feed}.norm", x))
        x = x + linear(p, f"{feed}.down", gelu(up))
    x = norm(p, "head.norm", x)
    return cross_entropy((x @ p["head.weight"]).reshape(-1, VOCABULARY), targets.reshape(-1))


def rate(step):
    """Learning rate of a step."""
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    done = (step - WARMUP) / (SCHEDULED - WARMUP)
    return FLOOR + (PEAK - FLOOR) * (0.5 + 0.5 * math.cos(math.pi * done))


def main():
    """Trains, and prints the golden values."""
    parameters = {name: start(index, name, shape) for index, (name, shape) in enumerate(shapes())}
    groups = [
        {
            "params": [p for p in parameters.values() if (p.ndim > 1) == matrix],
            "weight_decay": decay,
        }
        for matrix, decay in ((True, 0.1), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    losses, gradients = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(parameters, *batch(step))
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            for name, parameter in parameters.items():
                flat = parameter.grad.flatten()
                samples = flat[:: len(flat) // SAMPLES].tolist()
                gradients.append({"name": name, "norm": flat.norm().item(), "samples": samples})
        torch.nn.utils.clip_grad_norm_(list(parameters.values()), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
    print(json.dumps({"losses": losses, "gradients": gradients}, indent=1))


main()
