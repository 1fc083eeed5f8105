"""A GPT over characters in an elastic job: it trains on while ranks die, leave and join.

    thinwire run --ranks 2:4 --restarts 10 -- python examples/python/torch_elastic.py --folder /tmp/elastic

Or with a coordinator, and a torchrun of its own for every rank, which starts the rank again if it dies:

    export THINWIRE_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')
    thinwire coordinator --listen 127.0.0.1:4711 --ranks 2:4 &
    export THINWIRE_COORDINATOR=127.0.0.1:4711 THINWIRE_MEMBER=new
    torchrun --standalone --nproc-per-node 1 --max-restarts 10 \\
        examples/python/torch_elastic.py --folder /tmp/elastic &

`kill -9` of any rank costs the step under way, which the others do again; SIGTERM lets a rank leave. Where
all ranks have died, new ones begin with the last checkpoint. Rank 0 prints the validation losses as JSON.
"""

import argparse
import json
import logging
import os
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset
from torch_ddp_gpt import GPT, read, sums

import thinwire.torch


class Rows(Dataset):
    """Rows of a text: the row's number, its characters, and the character that follows each."""

    def __init__(self, characters: torch.Tensor, context: int) -> None:
        """All whole rows of `context` characters."""
        count = (len(characters) - 1) // context
        self.inputs = characters[: count * context].view(count, context)
        self.targets = characters[1 : count * context + 1].view(count, context)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, number: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return number, self.inputs[number], self.targets[number]


class Record:
    """The samples of every step that this rank tries, and the steps that it has applied, as JSON."""

    def __init__(self, folder: Path | None) -> None:
        """Records nothing without a folder."""
        self.file = folder and folder.joinpath(f"{os.getpid()}.json").open("w")

    def write(self, **line: object) -> None:
        """Writes a line at once, so that a killed rank has written all that it has sent."""
        if self.file:
            print(json.dumps(line), file=self.file, flush=True)


def main() -> None:
    """Trains as one rank of the job."""
    options = parsed()
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # changes of the members
    text = read(options.data) if options.data else sums(20_000)
    vocabulary = sorted(set(text))
    numbers = {character: number for number, character in enumerate(vocabulary)}
    characters = torch.tensor([numbers[character] for character in text])
    cut = len(characters) * 9 // 10
    data, unseen = (Rows(part, options.context) for part in (characters[:cut], characters[cut:]))

    torch.manual_seed(0)
    model = GPT(len(vocabulary), options.width, options.blocks, options.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    elastic = thinwire.torch.Elastic(model, optimizer, batch=options.batch, codec=options.codec)
    loader = elastic.loader(data, num_workers=options.workers, seed=0)
    steps = options.passes * len(loader)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    scaler = torch.amp.GradScaler("cpu")
    elastic.follow(scheduler=scheduler, scaler=scaler)
    saved = options.folder / "checkpoint.pt"
    if elastic.steps == 0 and saved.exists():  # the job begins: nobody has a newer state
        elastic.load_state_dict(torch.load(saved))

    record, times = Record(options.record), []
    begun = time.monotonic()
    for _ in loader.passes(options.passes):
        for samples, inputs, targets in loader:
            place = elastic.place
            record.write(step=elastic.steps, epoch=place.epoch, samples=samples.tolist())
            since, done = time.monotonic(), elastic.steps
            optimizer.zero_grad()
            loss = cross_entropy(elastic.model(inputs).flatten(0, 1), targets.flatten())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            if elastic.steps > done:  # neither void nor skipped by the scaler
                record.write(applied=done, epoch=place.epoch)
                times.append(time.monotonic() - since)
                if elastic.rank == 0 and elastic.steps % options.every == 0:
                    torch.save(elastic.state_dict(), saved.with_suffix(".new"))
                    saved.with_suffix(".new").replace(saved)
    if elastic.rank == 0:
        last = {"step": elastic.steps, "at_s": time.monotonic() - begun}
        last["value"] = validated(model, unseen)
        step_s = sorted(times)[len(times) // 2] if times else None
        print(json.dumps({"validation": [last], "time": {"step_s": step_s}}))


@torch.no_grad()
def validated(model: GPT, unseen: Rows) -> float:
    """The mean loss over the part of the text that is not trained on."""
    scores = model(unseen.inputs).flatten(0, 1)
    return cross_entropy(scores, unseen.targets.flatten()).item()


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="where checkpoints are kept")
    parser.add_argument("--data", type=Path, help="a text file")
    parser.add_argument("--record", type=Path, help="a folder for the samples of every step")
    parser.add_argument("--codec", default="int8", help="none, int8, int4, powersgd:4, auto, ...")
    numbers = {"passes": 5, "batch": 32, "workers": 2, "every": 50}
    numbers |= {"context": 64, "width": 64, "blocks": 2}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=3e-3)
    options = parser.parse_args()
    for folder in filter(None, (options.folder, options.record)):
        folder.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    main()
