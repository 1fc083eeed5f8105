"""The models of the benchmarks, and data with something to learn in it: GPT, a CNN, many small matrices."""

from __future__ import annotations

import gzip
import pathlib

import torch
from torch import nn
from torch.nn import functional

CONTEXT = 64
IMAGES = 2048
# Inputs and outputs of the model of one layer: 98 MB of f32.
SIDE = 4950


class Block(nn.Module):
    """Attention and a multilayer perceptron, each behind a norm, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attend = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        parts = self.attend(self.norms[0](hidden)).split(width, dim=2)
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.down(functional.gelu(self.up(self.norms[1](hidden))))


class GPT(nn.Module):
    """A transformer over characters; 10.7 M parameters as it stands."""

    def __init__(self, vocabulary: int, width: int = 384, layers: int = 6, heads: int = 6) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens) + self.places(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        return self.head(self.norm(self.blocks(hidden))).transpose(1, 2)


def cnn(classes: int = 10) -> nn.Module:
    """Convolutions with batch normalisation and two wide layers, as VGG; 11.2 M parameters."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128, 256):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
        channels = width
    layers += [nn.Flatten(), nn.Linear(1024, 2560), nn.ReLU(), nn.Linear(2560, 3072), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(3072, classes))


class LSTM(nn.Module):
    """Next letters by one recurrent layer; 5.3 M parameters for 65 letters."""

    def __init__(self, vocabulary: int, embedding: int = 256, hidden: int = 1024) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits, classes second."""
        return self.head(self.lstm(self.tokens(tokens))[0]).transpose(1, 2)


class Many(nn.Module):
    """A sum of many small matrices: 3,000 tensors of 64 elements, for what a step pays per tensor."""

    def __init__(self, count: int = 3000) -> None:
        super().__init__()
        self.matrices = nn.ParameterList(torch.zeros(8, 8) for _ in range(count))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for matrix in self.matrices:
            inputs = inputs + matrix
        return inputs.flatten(1)


class Text:
    """Windows of a text: bytes in, next bytes out. The last tenth is for validation."""

    def __init__(self, path: str | None, batch: int, rank: int, device: str = "cpu") -> None:
        raw = pathlib.Path(path).read_bytes() if path else made_text()
        letters = sorted(set(raw))
        codes = {letter: code for code, letter in enumerate(letters)}
        text = torch.tensor([codes[letter] for letter in raw])
        cut = len(text) * 9 // 10
        self.device = device
        self.vocabulary = len(letters)
        self.parts = {"training": text[:cut], "validation": text[cut:]}
        self.batch = batch
        self.generator = torch.Generator().manual_seed(1000 + rank)

    def draw(self, part: str, generator: torch.Generator | None = None):
        """Inputs and targets of one batch."""
        text, generator = self.parts[part], generator or self.generator
        starts = torch.randint(len(text) - CONTEXT - 1, (self.batch,), generator=generator)
        windows = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
        windows = windows.to(self.device)
        return windows[:, :-1], windows[:, 1:]


class Pictures:
    """Ten patterns under noise."""

    def __init__(self, batch: int, rank: int, device: str = "cpu") -> None:
        made = torch.Generator().manual_seed(7)
        self.patterns = torch.randn(10, 3, 32, 32, generator=made)
        self.batch = batch
        self.device = device
        self.generator = torch.Generator().manual_seed(1000 + rank)

    def draw(self, part: str, generator: torch.Generator | None = None):
        """Images and labels of one batch."""
        generator = generator or self.generator
        labels = torch.randint(10, (self.batch,), generator=generator)
        noise = torch.randn(self.batch, 3, 32, 32, generator=generator)
        images = 0.5 * self.patterns[labels] + 2.0 * noise
        return images.to(self.device), labels.to(self.device)


class Digits:
    """MNIST's pictures, each moved by up to two pixels and under noise, so that none comes twice.

    The first 8,000 are for training, the others for validation.
    """

    NOISE = 0.8

    def __init__(self, folder: str, batch: int, rank: int, device: str = "cpu") -> None:
        def read(name: str, head: int) -> torch.Tensor:
            found = sorted(pathlib.Path(folder).glob(f"*{name}*.gz"))
            raw = gzip.decompress(found[0].read_bytes())[head:]
            return torch.frombuffer(bytearray(raw), dtype=torch.uint8)

        pictures = read("images-idx3", 16).view(-1, 1, 28, 28).float() / 255 - 0.13
        self.pictures = functional.pad(pictures, (2, 2, 2, 2), value=-0.13)
        self.labels = read("labels-idx1", 8).long()
        self.batch = batch
        self.device = device
        self.generator = torch.Generator().manual_seed(1000 + rank)

    def draw(self, part: str, generator: torch.Generator | None = None):
        """Pictures and labels of one batch."""
        generator = generator or self.generator
        first, last = (0, 8000) if part == "training" else (8000, len(self.labels))
        chosen = torch.randint(first, last, (self.batch,), generator=generator)
        moves = torch.randint(5, (self.batch, 2), generator=generator).tolist()
        pairs = zip(self.pictures[chosen], moves)
        pictures = torch.stack(
            [p[:, down : down + 28, right : right + 28] for p, (down, right) in pairs]
        )
        noise = torch.randn(self.batch, 1, 28, 28, generator=generator)
        labels = self.labels[chosen]
        return (pictures + self.NOISE * noise).to(self.device), labels.to(self.device)


class Points:
    """Points, each of the class of its largest coordinate."""

    def __init__(self, shape: tuple, batch: int, rank: int, device: str = "cpu") -> None:
        self.shape = shape
        self.batch = batch
        self.device = device
        self.generator = torch.Generator().manual_seed(1000 + rank)

    def draw(self, part: str, generator: torch.Generator | None = None):
        """Points and labels of one batch."""
        points = torch.randn(self.batch, *self.shape, generator=generator or self.generator)
        return points.to(self.device), points.flatten(1).argmax(1).to(self.device)


def made_text() -> bytes:
    """Text for machines that have none: sums, spelled out."""
    lines = (f"{a} plus {b} is {a + b}.\n" for a in range(200) for b in range(0, 200, 3))
    return "".join(lines).encode()


def make(name: str, data: str | None, batch: int, rank: int, device: str = "cpu"):
    """A model and its data, the same on all ranks but for the rank's own batches."""
    torch.manual_seed(0)
    if name in ("gpt", "lstm"):
        text = Text(data, batch, rank, device)
        return {"gpt": GPT, "lstm": LSTM}[name](text.vocabulary).to(device), text
    if name == "many":
        return Many().to(device), Points((8, 8), batch, rank, device)
    if name == "layer":
        layer = nn.Linear(SIDE, SIDE, bias=False)
        return layer.to(device), Points((SIDE,), batch, rank, device)
    return cnn().to(device), Pictures(batch, rank, device)


def convolutions(channels: tuple[int, ...], hidden: int) -> nn.Module:
    """A smooth CNN over pictures of 28 pixels a side.

    With the kinks of ReLU and the jumps of maximal pooling, trainings from the same weights drift apart
    by half a percent of the loss whatever is changed; here by less than a tenth.
    """
    layers: list[nn.Module] = []
    inputs, side = 1, 28
    for width in channels:
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.GroupNorm(4, width), nn.GELU()]
        layers += [nn.AvgPool2d(2)]
        inputs, side = width, side // 2
    layers += [nn.Flatten(), nn.Linear(inputs * side * side, hidden), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(hidden, 10))


# Models for whole trainings: 0.15 to 0.2 M parameters, 0.5 to 0.8 M, and 5 to 11 M.
TRAINED = {
    ("gpt", "small"): lambda letters: GPT(letters, width=64, layers=3, heads=4),
    ("gpt", "medium"): lambda letters: GPT(letters, width=128, layers=4, heads=4),
    ("lstm", "small"): lambda letters: LSTM(letters, embedding=48, hidden=192),
    ("lstm", "medium"): lambda letters: LSTM(letters, embedding=64, hidden=320),
    ("gpt", "large"): GPT,
    ("lstm", "large"): LSTM,
    ("cnn", "small"): lambda _: convolutions((8, 16), 256),
    ("cnn", "medium"): lambda _: convolutions((16, 32), 400),
}


def trained(name: str, size: str, seed: int, rank: int, options):
    """A model to train to the end and its data, from options.data and options.digits.

    Weights and each rank's order of batches follow from the seed.
    """
    if name == "cnn":
        data, letters = Digits(options.digits, options.batch, rank), 0
    else:
        data = Text(options.data, options.batch, rank)
        letters = data.vocabulary
    data.generator = torch.Generator().manual_seed(1000 * seed + rank)
    torch.manual_seed(seed)
    return TRAINED[name, size](letters), data
