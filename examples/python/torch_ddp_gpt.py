"""A GPT over characters, trained by DDP; Thinwire is the line marked with an arrow.

    torchrun --nproc-per-node 2 examples/python/torch_ddp_gpt.py --steps 100
    torchrun --nproc-per-node 2 examples/python/torch_ddp_gpt.py --data book.txt --codec int4
    torchrun --nproc-per-node 2 examples/python/torch_ddp_gpt.py --backend thinwire

With `--backend thinwire` torch.distributed itself runs over Thinwire, uncompressed, without the hook.
Without --data it learns sums that it makes itself. Rank 0 prints the mean loss of all ranks.
"""

import argparse
import random
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import thinwire.torch


class GPT(nn.Module):
    """Blocks of attention and MLP over characters."""

    def __init__(self, vocabulary: int, width: int, blocks: int, context: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        block = nn.TransformerEncoderLayer(
            *(width, 4, 4 * width, 0.0, nn.functional.gelu), batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, blocks, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Scores of the next character at every place: batch x context x vocabulary."""
        length = characters.shape[1]
        hidden = self.characters(characters) + self.places(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(self.norm(self.blocks(hidden, mask, is_causal=True)))


def main() -> None:
    """Trains on every rank of the job."""
    options = parsed()
    dist.init_process_group(options.backend)
    text = read(options.data) if options.data else sums(20_000)
    vocabulary = sorted(set(text))
    characters = torch.tensor([vocabulary.index(character) for character in text])

    torch.manual_seed(0)
    model = DistributedDataParallel(
        GPT(len(vocabulary), options.width, options.blocks, options.context), bucket_cap_mb=1
    )
    if options.backend != "thinwire":
        thinwire.torch.attach(model, codec=options.codec)  # <-- Thinwire
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)

    torch.manual_seed(1 + dist.get_rank())
    for step in range(1, options.steps + 1):
        starts = torch.randint(len(characters) - options.context, (options.batch,))
        rows = torch.stack([characters[start : start + options.context + 1] for start in starts])
        scores = model(rows[:, :-1])
        loss = cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % 20 == 0 or step == options.steps:
            report(step, loss.detach())
    dist.destroy_process_group()


def parsed() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="a text file")
    parser.add_argument("--codec", default="auto", help="none, int8, int4, powersgd:4, auto, ...")
    parser.add_argument("--backend", default="gloo", choices=["gloo", "thinwire"])
    numbers = {"steps": 200, "batch": 16, "context": 64, "width": 64, "blocks": 2}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=3e-3)
    return parser.parse_args()


def read(file: Path) -> str:
    """The text of a file; ends the program without one."""
    try:
        return file.read_text()
    except OSError as error:
        raise SystemExit(f"cannot read {file}: {error.strerror}") from None


def sums(count: int) -> str:
    """So many sums of two numbers, one per line."""
    numbers = random.Random(0)
    pairs = [(numbers.randrange(50), numbers.randrange(50)) for _ in range(count)]
    return "".join(f"{first}+{second}={first + second}\n" for first, second in pairs)


def report(step: int, loss: torch.Tensor) -> None:
    """Prints the mean loss of all ranks."""
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item() / dist.get_world_size():.3f}", flush=True)


if __name__ == "__main__":
    main()
