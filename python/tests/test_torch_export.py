"""Modules become model files that say the same as the built-in models."""

import json
import math
import os
import random
import subprocess
from pathlib import Path

import pytest

import thinwire

pytestmark = pytest.mark.needs("torch")

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "crates" / "model" / "tests" / "models" / "torch_gpt.json"


def exported(tmp_path, module, *inputs):
    """The file of a module, read again."""
    import thinwire.torch

    path = tmp_path / "model.json"
    thinwire.torch.export_graph(module, inputs, path)
    return json.loads(path.read_text())


def operators(file):
    return [next(iter(node["operator"])) for node in file["nodes"]]


def parameters(file):
    weights = [t["shape"] for t in file["tensors"] if isinstance(t["role"], dict)]
    return sum(math.prod(shape) for shape in weights)


def small_gpt():
    """As the built-in one: 3 layers of 16 features, 2 heads, 40 tokens, 6 positions."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(16), nn.LayerNorm(16)
            self.qkv, self.projection = nn.Linear(16, 48), nn.Linear(16, 16)
            self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

        def forward(self, x):
            batch, tokens, features = x.shape
            parts = self.qkv(self.norm_1(x)).split(features, dim=2)
            q, k, v = (part.view(batch, tokens, 2, 8).transpose(1, 2) for part in parts)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            mixed = mixed.transpose(1, 2).reshape(batch, tokens, features)
            x = x + self.projection(mixed)
            return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(40, 16), nn.Embedding(6, 16)
            self.layers = nn.Sequential(*(Layer() for _ in range(3)))
            self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 40, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, tokens):
            x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
            return self.head(self.norm(self.layers(x)))

    return Gpt(), torch.zeros(2, 6, dtype=torch.long)


def test_a_perceptron_is_the_built_in_one(tmp_path):
    import torch
    from torch import nn

    sizes = [784, 512, 512, 10]
    layers = [(nn.Linear(k, n), nn.ReLU()) for k, n in zip(sizes, sizes[1:], strict=False)]
    module = nn.Sequential(*[part for pair in layers for part in pair][:-1])
    file = exported(tmp_path, module, torch.zeros(3, 784))
    assert operators(file) == ["linear", "activation"] * 2 + ["linear"]
    assert parameters(file) == 669_706
    assert file["tensors"][0]["shape"] == [{"batch": 1}, 784]
    assert shown(tmp_path, "model.json") == shown(tmp_path, "mlp")


def test_a_network_of_convolutions_has_what_was_built(tmp_path):
    import torch
    from torch import nn

    module = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(4, 10),
        nn.LogSoftmax(-1),
    )
    file = exported(tmp_path, module, torch.zeros(2, 3, 8, 8))
    body = [
        "conv2d",
        "reshape",
        "arithmetic",
        "moments",
        "batch_norm",
        "activation",
        "pool",
        "pool",
    ]
    assert operators(file) == [*body, "reshape", "dropout", "linear"]
    assert parameters(file) == sum(weight.numel() for weight in module.parameters())
    assert {"reshape": {"shape": [{"batch": 1}, 4]}} in [n["operator"] for n in file["nodes"]]


def test_functions_and_numbers_are_the_ones_that_were_meant(tmp_path):
    import torch
    from torch import nn

    module = nn.Sequential(
        nn.Conv2d(4, 6, (3, 2), stride=(1, 2), padding=(2, 1), dilation=2, groups=2, bias=False),
        nn.GELU(),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.LayerNorm(192, eps=1e-3),
        nn.Linear(192, 3),
    )
    file = exported(tmp_path, module, torch.zeros(2, 4, 8, 8))
    found = [node["operator"] for node in file["nodes"]]
    convolution = {"stride": [1, 2], "padding": [2, 1, 2, 1], "dilation": [2, 2], "groups": 2}
    assert found[0] == {"conv2d": convolution}
    assert found[1:3] == [{"activation": "gelu_erf"}, {"activation": "sigmoid"}]
    assert {"layer_norm": {"epsilon": 0.001}} in found


def test_a_gpt_is_the_file_that_the_model_crate_checks(tmp_path):
    module, tokens = small_gpt()
    file = exported(tmp_path, module, tokens)
    assert file == json.loads(GOLDEN.read_text())
    assert parameters(file) == sum(weight.numel() for weight in module.parameters())
    name = "gpt:layers=3,width=16,heads=2,vocabulary=40,positions=6"
    assert shown(tmp_path, "model.json") == shown(tmp_path, name)


def test_what_is_not_supported_is_named(tmp_path):
    import torch

    class Odd(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x).cumsum(1)

    with pytest.raises(
        thinwire.InvalidError, match=r"^node 2 'cumsum': operator aten.cumsum.default is not"
    ):
        exported(tmp_path, Odd(), torch.zeros(2, 4))


def test_gains_begin_at_one_by_their_operator_and_not_by_their_name(tmp_path):
    import torch
    from torch import nn

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.g, self.weight = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
            self.score = nn.Linear(8, 1)

        def forward(self, x):
            normal = nn.functional.rms_norm(x, (8,), self.g, 1e-6)
            return normal * self.score(x * self.g) + self.weight

    file = exported(tmp_path, Norm(), torch.zeros(2, 8))
    initial = {t["name"]: t["role"] for t in file["tensors"] if isinstance(t["role"], dict)}
    assert {name: role["parameter"] for name, role in initial.items()} == {
        "g": "ones",
        "weight": "zeros",
        "score.weight": {"normal": 0.02},
        "score.bias": "zeros",
    }


def test_regions_and_arguments_that_are_not_known_are_refused_and_named(tmp_path):
    import torch
    from torch import nn

    class Region(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            with torch.no_grad():
                y = self.linear(x)
            return self.linear(x) + y

    class Number(nn.Module):
        def forward(self, x):
            return 3

    class Stable(nn.Module):
        def forward(self, x):
            return torch.softmax(x, -1, dtype=torch.float64).argmax(-1, keepdim=True)

    class Noise(nn.Module):
        def forward(self, x):
            return x * torch.rand(4)

    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(4, 4)

        def forward(self, x):
            return x + self.table(torch.tensor([3, 1, 0, 2]))

    for module, x, expected in (
        (
            Region(),
            torch.zeros(2, 4),
            r"^node \d+ '\w+': operator wrap_with_set_grad_enabled is not",
        ),
        (Number(), torch.zeros(2, 4), "^the module returns int, expected a tensor"),
        (Stable(), torch.zeros(2, 4), r"^node \d 'softmax': operator aten.softmax.int computes in"),
        (Noise(), torch.zeros(2, 4), r"^node \d+ 'rand': operator aten.rand.default draws random"),
        (
            Rows(),
            torch.zeros(2, 4, 4),
            r"^node \d+ 'table.embedding': it looks up rows \[3, 1, 0, 2\]",
        ),
    ):
        with pytest.raises(thinwire.InvalidError, match=expected) as caught:
            exported(tmp_path, module, x)
        assert "\n" not in str(caught.value)


def test_a_table_knows_the_row_that_is_padding(tmp_path):
    import torch
    from torch import nn

    class Words(nn.Module):
        def __init__(self, **options):
            super().__init__()
            self.table, self.head = nn.Embedding(8, 4, **options), nn.Linear(4, 8)

        def forward(self, x):
            return self.head(self.table(x))

    class Places(Words):
        def forward(self, x):
            return self.head(x + self.table(torch.arange(2, 5)))

    words, images = torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, 4)
    for options, expected in (
        ({}, None),
        ({"padding_idx": 3}, {"padding": 3}),
        ({"padding_idx": -1}, {"padding": 7}),
    ):
        file = exported(tmp_path, Words(**options), words)
        assert file["nodes"][0]["operator"] == {"embedding": expected}
    assert "unpack" in operators(exported(tmp_path, Places(padding_idx=1), images))
    for module, x, expected in (
        (Words(scale_grad_by_freq=True), words, "scale_grad_by_freq is True, expected False"),
        (Places(padding_idx=2), images, "constant ids look up row 2, which is padding"),
    ):
        with pytest.raises(thinwire.InvalidError, match=rf"^node \d 'table.embedding': {expected}"):
            exported(tmp_path, module, x)


def test_what_does_not_grow_with_the_batch_is_refused(tmp_path):
    import torch

    class Pairs(torch.nn.Module):
        def forward(self, x):
            return x.reshape(1, -1)[:, 1:]

    with pytest.raises(thinwire.InvalidError, match="which is not a multiple of the batch"):
        exported(tmp_path, Pairs(), torch.zeros(2, 4))


def test_what_cannot_be_exported_is_refused_in_one_line(tmp_path, capsys):
    import torch
    from torch import nn

    import thinwire.torch

    class Of(nn.Module):
        def __init__(self, function):
            super().__init__()
            self.linear, self.function = nn.Linear(8, 4), function

        def forward(self, x):
            return self.function(self.linear(x))

    x, linear, path = torch.zeros(2, 8), nn.Linear(8, 4), tmp_path / "model.json"
    by_sign = Of(lambda y: y if y.sum() > 0 else -y)
    by_batch = Of(lambda y: y.reshape(4, -1))
    for module, examples, place, sequence, expected in (
        (linear, x, path, None, "example_inputs is Tensor, expected a tuple of tensors"),
        (linear, "x", path, None, "example_inputs is str, expected a tuple of tensors"),
        (linear, (), path, None, "example_inputs has 0 examples, expected 1 or more"),
        (linear, ("x",), path, None, "the first example is str, expected a tensor"),
        (linear, (torch.tensor(1.0),), path, None, r"the first example has shape \[\], expected"),
        (linear, (torch.zeros(0, 8),), path, None, r"the first example has shape \[0, 8\]"),
        (linear, (torch.zeros(2, 9),), path, None, "torch.export cannot trace Linear: "),
        (len, (x,), path, None, "module is builtin_function_or_method, expected a torch.nn.Module"),
        (linear, (x,), tmp_path / "o.txt", None, "expected one that ends in .json"),
        (linear, (x,), path, -1, "sequence is -1, expected 1 to 1073741824"),
        (linear, (x,), path, 2**70, "sequence is 1180591620717411303424, expected 1 to"),
        (by_sign, (x,), path, None, "torch.export cannot trace Of: .*may depend on shapes"),
        (by_batch, (x,), path, None, "^node 1 'reshape' exists for a batch of 2 but not for 4"),
    ):
        with pytest.raises(thinwire.InvalidError, match=expected) as caught:
            thinwire.torch.export_graph(module, examples, place, sequence=sequence)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
        assert not place.exists()
    assert "def forward" not in capsys.readouterr().err


def shown(tmp_path, model):
    """Parameters and flops as the command says them; nothing where there is no command."""
    places = [ROOT / "target" / kind / "thinwire" for kind in ("debug", "release")]
    places.insert(0, Path(os.environ.get("THINWIRE_COMMAND", "/nowhere")))
    command = next((place for place in places if place.is_file()), None)
    if command is None:
        return None
    arguments = [command, "model", "show", model, "--batch", "4", "--json"]
    report = json.loads(subprocess.check_output(arguments, cwd=tmp_path, timeout=600))
    return [report[key] for key in ("parameters", "forward_flops", "backward_flops")]


def test_what_is_known_is_worked_out_and_never_trained(tmp_path):
    import torch
    from torch import nn

    class Known(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
            self.frozen.weight.requires_grad = False
            self.register_buffer("steps", torch.zeros(1))

        def forward(self, x):
            self.steps.add_(1)
            with torch.no_grad():
                angles = torch.outer(torch.arange(3.0), 10.0 ** -torch.arange(4.0))
            x = self.frozen(self.linear(x)) * angles.cos() + torch.arange(3).cumsum(0)[:, None]
            hidden = torch.ones(3, 3, dtype=torch.bool).triu(1)
            scores = (x @ x.transpose(1, 2)).masked_fill(hidden[None], float("-inf"))
            return torch.softmax(scores, -1) @ x

    module = Known()
    file = exported(tmp_path, module, torch.zeros(2, 3, 4))
    assert {t["name"] for t in file["tensors"] if isinstance(t["role"], dict)} == {
        "linear.weight",
        "linear.bias",
    }
    known = [n["operator"]["constant"] for n in file["nodes"] if "constant" in n["operator"]]
    assert [constant["shape"] for constant in known] == [[4, 4], [3, 4], [3, 1]]
    assert known[2]["values"] == [0.0, 1.0, 3.0]
    assert {"softmax": {"causal": True}} in [node["operator"] for node in file["nodes"]]
    assert module.steps.item() == 0, "the module is as it was"
    assert shown(tmp_path, "model.json") is None or shown(tmp_path, "model.json")[0] == 20


def test_masks_are_all_earlier_or_added(tmp_path):
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self, mask):
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("mask", mask)

        def forward(self, x):
            x = self.linear(x).unflatten(-1, (2, 4)).transpose(1, 2)
            mask = self.mask.expand(x.shape[0], 1, 5, 5)
            return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    ones = torch.ones(5, 5, dtype=torch.bool)
    added = torch.zeros(5, 5).masked_fill(~ones.tril(), -1e9)
    for mask, expected in (
        (ones, {"attention": {"head_size": 4, "queries_per_key": 1, "causal": False}}),
        (ones.tril(), {"attention": {"head_size": 4, "queries_per_key": 1, "causal": True}}),
        (added, {"attention": {"head_size": 4, "queries_per_key": 1, "causal": True}}),
        (ones.tril().triu(-1), {"softmax": {"causal": False}}),
    ):
        file = exported(tmp_path, Attention(mask), torch.zeros(2, 5, 8))
        assert expected in [node["operator"] for node in file["nodes"]]
    window = next(n["operator"]["constant"] for n in file["nodes"] if "constant" in n["operator"])
    assert window["shape"] == [1, 1, 5, 5] and sum(v == 0.0 for v in window["values"]) == 9


def test_functions_of_three_lines_and_long_concatenations_are_taken_apart(tmp_path):
    import torch
    from torch import nn

    class Many(nn.Module):
        def forward(self, x):
            x = nn.functional.hardswish(nn.functional.hardsigmoid(x)).clamp(-1, 1)
            return torch.cat([x] * 9, 1)

    file = exported(tmp_path, Many(), torch.zeros(2, 4))
    packs = [n["operator"]["pack"]["sections"] for n in file["nodes"] if "pack" in n["operator"]]
    assert packs == [[4] * 8, [32, 4]]
    assert operators(file).count("activation") == 6


def test_what_torch_trains_otherwise_is_refused_by_name(tmp_path):
    import numpy
    import torch
    from torch import nn
    from torch.nn.functional import dropout

    from export_draws import Reversed, hooked

    class Of(nn.Module):
        def __init__(self, function):
            super().__init__()
            self.first, self.last, self.function = nn.Linear(8, 8), nn.Linear(8, 4), function

        def forward(self, x):
            return self.last(self.function(self.first(x)))

    class Texts(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0)
            self.table, self.last = nn.Embedding(32, 8), nn.Linear(8, 32)
            self.mixed = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

        def forward(self, x):
            mask = nn.Transformer.generate_square_subsequent_mask(len(x))
            return self.last(self.mixed(self.table(x), mask=mask, is_causal=True))

    class Recurrent(nn.LSTM):
        def forward(self, x):
            return super().forward(x)[0]

    class Counted(nn.Linear):
        def __init__(self):
            super().__init__(8, 4)
            self.register_buffer("count", torch.ones(()))

        def forward(self, x):
            self.count = self.count + 1
            return super().forward(x) / self.count

    class Frozen(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].eval()
            return self

    frozen = Frozen(nn.Linear(8, 4), nn.BatchNorm1d(4)).train()
    masked, seen = Of(torch.relu), Of(lambda h: (h.register_hook(lambda _: None), h)[1])
    masked.first.weight.register_hook(lambda gradient: gradient * 0)
    x, tokens = torch.zeros(2, 8), torch.zeros(6, 2, dtype=torch.long)
    gradient = (
        "^the gradient of '.*' differs by .* % from the gradient that the module's operators give: "
    )
    for module, example, expected in (
        (Of(Reversed.apply), x, f"{gradient}autograd.Function Reversed"),
        (Of(hooked), x, f"{gradient}Tensor.register_hook in forward"),
        (masked, x, f"{gradient}register_hook of 'first.weight'"),
        (Of(lambda h: h + h.detach()), x, r"^node \d+ 'detach': operator aten.detach.default"),
        (
            Of(lambda h: h.int().float()),
            x,
            r"^node \d+ 'to': operator aten.to.dtype converts float32 to int32",
        ),
        (Of(lambda h: h.bfloat16().float()), x, r"operator aten.to.dtype computes in bfloat16"),
        (nn.Linear(8, 4).bfloat16(), x.bfloat16(), r"computes in bfloat16, .* module.float\(\)"),
        (Texts(), tokens, "^the logits of row 5 of the batch depend on other rows"),
        (Recurrent(8, 4).eval(), torch.zeros(2, 3, 8), "operator aten.lstm.input is not supported"),
        (Counted(), x, "^the forward of Counted, called again, gives a different result"),
        (frozen, x, "^batch norm '1' is in evaluation and the module in training"),
        (
            Of(lambda h: h if random.random() < 1 else -h),
            x,
            "^the forward of Of draws from Python's random",
        ),
        (
            Of(lambda h: h if numpy.random.rand() < 1 else -h),
            x,
            "^the forward of Of draws from numpy.random",
        ),
        (Of(lambda h: h * dropout(torch.ones(8), 0.5)), x, "aten.dropout.default draws random"),
        (Of(torch.func.vmap(torch.tanh)), x, r"^node \d+ '\w+': operator \w+ is not supported"),
        (Recurrent(8, 4, 2, dropout=0.5), torch.zeros(2, 3, 8), "aten.lstm.input draws random"),
    ):
        with pytest.raises(thinwire.InvalidError, match=expected) as caught:
            exported(tmp_path, module, example)
        assert "\n" not in str(caught.value)
    exported(tmp_path, seen, x)
    assert seen.first.weight.grad is None and seen.first.weight.dtype is torch.float32
