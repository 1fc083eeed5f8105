"""Small models of images in the shapes of torchvision's, which the tests have not: the same operators."""

from __future__ import annotations

import torch
from torch import nn

CLASSES = 10


def normed(
    channels: int, out: int, size: int = 3, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """A convolution and its batch norm."""
    convolution = nn.Conv2d(channels, out, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out))


def before(channels: int, out: int, size: int) -> nn.Sequential:
    """Batch norm, and then a convolution."""
    convolution = nn.Conv2d(channels, out, size, padding=size // 2)
    return nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), convolution)


class Vgg(nn.Module):
    """Convolutions and pools, and a classifier over a fixed number of places."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels, out in ((3, 8), (8, 16)):
            layers += [
                nn.Conv2d(channels, out, 3, padding=1),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(2),
            ]
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d((8, 8))
        self.classifier = nn.Sequential(
            nn.Linear(16 * 64, 32), nn.ReLU(inplace=True), nn.Dropout(0.0), nn.Linear(32, CLASSES)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.pool(self.features(x)), 1))


class DenseNet(nn.Module):
    """Layers that read all layers before them, and a transition that halves channels and places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = normed(3, 8)
        widths = (8, 12, 16)
        self.layers = nn.ModuleList(before(width, 4, 3) for width in widths)
        self.transition = nn.Sequential(before(20, 10, 1), nn.AvgPool2d(2))
        self.classifier = nn.Linear(10, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        x = torch.relu(self.transition(torch.cat(features, 1)))
        return self.classifier(torch.flatten(nn.functional.adaptive_avg_pool2d(x, (1, 1)), 1))


class Squeeze(nn.Module):
    """Factors for channels, from their means."""

    def __init__(self, channels: int, inner: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.down, self.up = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)
        self.inner, self.gate = inner, gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate(self.up(self.inner(self.down(self.pool(x))))) * x


class Inverted(nn.Module):
    """The block that MobileNetV3 and EfficientNet share, inverted and squeezed, in a small model."""

    def __init__(self, activation: type[nn.Module], inner: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Sequential(normed(3, 8, 3, 2), activation())
        self.block = nn.Sequential(
            *(normed(8, 16, 1), activation()),
            *(normed(16, 16, 5, groups=16), activation()),
            *(Squeeze(16, inner, gate), normed(16, 8, 1)),
        )
        self.classifier = nn.Sequential(nn.Linear(8, 16), activation(), nn.Linear(16, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.block(x)
        return self.classifier(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))


def mobilenet() -> Inverted:
    """MobileNetV3's activations."""
    return Inverted(nn.Hardswish, nn.ReLU(), nn.Hardsigmoid())


def efficientnet() -> Inverted:
    """EfficientNet's activations."""
    return Inverted(nn.SiLU, nn.SiLU(), nn.Sigmoid())


class Clip(nn.Module):
    """CLIP's model of images, with its projection as logits."""

    def __init__(self) -> None:
        from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

        super().__init__()
        sizes = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "image_size": 32,
        }
        patches = {"num_attention_heads": 4, "patch_size": 8, "projection_dim": CLASSES}
        self.clip = CLIPVisionModelWithProjection(CLIPVisionConfig(**sizes, **patches))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.clip(x).image_embeds


MODELS = {
    "vgg": Vgg,
    "densenet": DenseNet,
    "mobilenet": mobilenet,
    "clip": Clip,
    "efficientnet": efficientnet,
}
