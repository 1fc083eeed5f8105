"""Every codec beside its expression in PyTorch, and beside its text: one thread, encoding alone.

Reads `thinwire bench codec --json` lines on stdin, times each expression on as many values, and
prints Markdown. An expression gives what would be sent, in as many bytes or more; where a codec packs
less than a byte, the expression packs too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import torch

WEIGHTS = 2 ** torch.arange(8, dtype=torch.uint8)


def blocks(x: torch.Tensor, size: int) -> torch.Tensor:
    return x.view(-1, size)


def bits(x: torch.Tensor) -> torch.Tensor:
    return (x.view(-1, 8).to(torch.uint8) * WEIGHTS).sum(1, dtype=torch.uint8)


def pairs(x: torch.Tensor) -> torch.Tensor:
    x = x.view(-1, 2).to(torch.uint8)
    return x[:, 0] | x[:, 1] << 4


def quarters(x: torch.Tensor) -> torch.Tensor:
    x = x.view(-1, 4).to(torch.uint8)
    return x[:, 0] | x[:, 1] << 2 | x[:, 2] << 4 | x[:, 3] << 6


def levels(x: torch.Tensor, size: int, most: int):
    x = blocks(x, size)
    scale = x.abs().amax(1, keepdim=True) / most
    return scale, torch.round(x / scale)


def random_levels(x: torch.Tensor, size: int, most: int):
    x = blocks(x, size)
    scale = x.abs().amax(1, keepdim=True) / most
    return scale, torch.floor(x / scale + torch.rand_like(x))


def int2(x: torch.Tensor):
    x = blocks(x, 128)
    unit = 1.25 * x.abs().mean(1, keepdim=True)
    return unit, quarters(torch.clamp(torch.floor(x / unit), -2, 1) + 2)


def onebit(x: torch.Tensor):
    x = blocks(x, 128)
    return x.abs().mean(1), bits(x < 0)


def float8(x: torch.Tensor, kind: torch.dtype):
    x = blocks(x, 128)
    scale = x.abs().amax(1, keepdim=True) / torch.finfo(kind).max
    return scale, (x / scale).to(kind)


def natural(x: torch.Tensor):
    mantissa, exponent = torch.frexp(x.abs())
    up = torch.rand_like(x) < 2 * mantissa - 1
    return (exponent + up).to(torch.int8), x < 0


def dynamic8(x: torch.Tensor):
    x = blocks(x, 256)
    scale = x.abs().amax(1, keepdim=True)
    return scale, torch.bucketize(x / scale, TABLE, out_int32=True).to(torch.uint8)


def threshold(x: torch.Tensor, tau: float):
    return quarters((x > tau).to(torch.uint8) + 2 * (x < -tau).to(torch.uint8))


def top(x: torch.Tensor, ratio: float):
    _, index = x.abs().topk(int(ratio * x.numel()), sorted=False)
    return index.to(torch.int32), x[index]


def sampled(x: torch.Tensor, ratio: float):
    sample = x[torch.randint(x.numel(), (x.numel() // 1000,))].abs()
    least = sample.kthvalue(int((1 - ratio) * sample.numel())).values
    index = (x.abs() > least).nonzero().squeeze(1)
    return index.to(torch.int32), x[index]


def cosine(x: torch.Tensor, kept: int):
    coefficients = blocks(x, 4096) @ COSINES
    _, index = coefficients.abs().topk(kept, dim=1, sorted=False)
    return index.to(torch.int16), coefficients.gather(1, index)


TABLE = torch.sort(torch.cat([s * 10.0 ** torch.linspace(-6, 0, 128) for s in (-1, 1)])).values
PLACES = torch.arange(4096, dtype=torch.float32)
COSINES = torch.cos(torch.pi / 4096 * (PLACES[:, None] + 0.5) * PLACES)

EXPRESSIONS = {
    "f16": lambda x: x.to(torch.float16),
    "bf16": lambda x: x.to(torch.bfloat16),
    "int8": lambda x: levels(x, 256, 127)[1].to(torch.int8),
    "int4": lambda x: pairs(levels(x, 128, 7)[1] + 7),
    "int3": lambda x: pairs(levels(x, 128, 3)[1] + 3),
    "int2": int2,
    "onebit": onebit,
    "vote": lambda x: bits(x < 0),
    "terngrad": lambda x: quarters(random_levels(x, 128, 1)[1] + 1),
    "qsgd:4": lambda x: pairs(random_levels(x, 128, 7)[1] + 7),
    "qsgd:3": lambda x: pairs(random_levels(x, 128, 3)[1] + 3),
    "natural": natural,
    "e4m3": lambda x: float8(x, torch.float8_e4m3fn),
    "e5m2": lambda x: float8(x, torch.float8_e5m2),
    "dynamic8": dynamic8,
    "tbq:0.5": lambda x: threshold(x, 0.5),
    "topk:0.01": lambda x: top(x, 0.01),
    "graddrop:0.01": lambda x: sampled(x, 0.01),
    "dgc:0.01": lambda x: sampled(x, 0.01),
    "randomk:0.01": lambda x: x[torch.randperm(x.numel())[: x.numel() // 100]],
    "dct:32": lambda x: cosine(x, 32),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [json.loads(line) for line in sys.stdin]
    table = {(line["codec"], line["operation"]): line for line in lines}
    values = torch.randn(lines[0]["bytes"] // 4)
    texts = {name.split("/")[-1].split(".codec")[0]: name for name, _ in table if ".codec" in name}
    print("| codec | encode, GB/s | x copy | with residual | decode | as text | / Rust "
          "| PyTorch | x PyTorch |")  # fmt: skip
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for codec, operation in table:
        if operation != "encode" or ".codec" in codec:
            continue
        encode = table[codec, "encode"]
        rate = encode["bytes_per_s"]
        cells = [f"{rate / 1e9:.1f}", f"{encode['relative_to_copy']:.2f}"]
        for other in ("encode with residual", "decode"):
            cells.append(f"{table[codec, other]['relative_to_copy']:.2f}")
        text = texts.get(codec.split(":")[0])
        as_text = table[text, "encode"]["bytes_per_s"] if text else None
        cells += [f"{as_text / 1e9:.1f}", f"{as_text / rate:.2f}"] if text else ["", ""]
        expression = EXPRESSIONS.get(codec)
        if expression:
            theirs = values.nbytes / seconds(expression, values, options.rounds)
            cells += [f"{theirs / 1e9:.2f}", f"{rate / theirs:.1f}"]
        else:
            cells += ["", ""]
        print(f"| {codec} | " + " | ".join(cells) + " |", flush=True)


def seconds(expression, values: torch.Tensor, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        expression(values)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


if __name__ == "__main__":
    main()
