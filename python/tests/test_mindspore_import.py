"""Networks of MindSpore become model files of their parameters, which learn as MindSpore does."""

import json
import os
import pathlib

import numpy
import pytest

import import_law as law

pytestmark = pytest.mark.needs("mindspore", "safetensors")

# Samples of each network: an image, or tokens.
SHAPES = {
    "lenet": (1, 32, 32),
    "resnet": (3, 32, 32),
    "mobile": (3, 32, 32),
    "bert": (law.TOKENS,),
    "encoder": (law.TOKENS,),
}


def written(name: str, shape: list[int], folder: str) -> dict:
    """Writes the model's file and weights, and what MindSpore finds in its trainings."""
    import mindspore as ms

    import mindspore_networks as networks
    import thinwire.mindspore

    place = pathlib.Path(folder)
    network = networks.built(name)
    thinwire.mindspore.export_graph(network, networks.example(shape), path=place / "model.json")
    ms.save_checkpoint(network, str(place / "model.safetensors"), format="safetensors")
    losses = {}
    for pieces in (1, 2) if "BatchNorm" in str(network) else (1,):
        batches = law.batches_of_images(*law.images(shape)) if len(shape) > 1 else None
        training = networks.trained(name, batches or law.windows(law.text()), pieces)
        losses[pieces] = training.losses
        numpy.savez(place / f"gradients-{pieces}.npz", **training.gradients)
        numpy.savez(place / f"first-{pieces}.npz", **training.first)
    parameters = {value.name: list(value.shape) for value in network.trainable_params()}
    return {"parameters": parameters, "losses": losses}


@pytest.mark.parametrize("name", SHAPES)
def test_a_network_follows_mindspore_under_every_plan(name, command, ranks):
    folder, shape = command.folder, SHAPES[name]
    (found,) = ranks(1, written, arguments=[name, shape, str(folder)])
    report = law.shown(command)
    law.check_parameters(report, found["parameters"])
    assert not report["frozen"]
    command("plan", "make", *law.planned(command, 16, 4, 2))
    if len(shape) == 1:
        (folder / "text").write_bytes(law.text())
        batch, flags = law.ROWS, ["--data", "text", "--sample-bytes", "0"]
    else:
        x, y = law.images(shape)
        numpy.savez_compressed(folder / "images.npz", x=x, y=y)
        batch, flags = law.IMAGE_ROWS, ["--data", "images.npz"]

    def training(pieces):
        # Without batch norm a batch may be cut as one likes.
        pieces = str(pieces) if str(pieces) in found["losses"] else "1"
        files = [folder / f"{kind}-{pieces}.npz" for kind in ("gradients", "first")]
        return law.Training(found["losses"][pieces], *(dict(numpy.load(file)) for file in files))

    file = law.check_training(command, batch, flags, training)
    assert ranks(1, returned, arguments=[name, str(file)]) == [[]]


def returned(name: str, file: str) -> list[str]:
    """Takes parameters back to MindSpore; those that the network does not know."""
    import mindspore as ms

    import mindspore_networks as networks

    network = networks.built(name)
    values = ms.load_checkpoint(file, format="safetensors")
    _, unknown = ms.load_param_into_net(network, values)
    return unknown


def masked(folder: str) -> list:
    """Operators of attention whose mask hides what comes later, after a norm."""
    import mindspore_networks as networks
    import thinwire.mindspore

    path = pathlib.Path(folder) / "model.json"
    thinwire.mindspore.export_graph(
        networks.Odd("masked"), networks.example((1, 32, 32)), path=path
    )
    nodes = json.loads(path.read_text())["nodes"]
    return [node["operator"] for node in nodes]


def test_a_mask_of_what_comes_later_is_causal(tmp_path, ranks):
    (found,) = ranks(1, masked, arguments=[str(tmp_path)])
    assert found[:2] == [{"softmax": {"causal": True}}, {"layer_norm": {"epsilon": 1e-5}}]


def padded(folder: str) -> list:
    """What a table becomes, one row of which may be padding."""
    import mindspore_networks as networks
    import thinwire.mindspore

    path, found = pathlib.Path(folder) / "model.json", []
    for padding in (None, 3, -1):
        network = networks.Words(padding_idx=padding)
        thinwire.mindspore.export_graph(network, networks.example((4,)), path=path)
        file = json.loads(path.read_text())
        shapes = [file["tensors"][at]["shape"] for at in file["nodes"][0]["inputs"]]
        found.append([file["nodes"][0]["operator"], shapes])
    return found


def test_a_table_knows_the_row_that_is_padding(tmp_path, ranks):
    (found,) = ranks(1, padded, arguments=[str(tmp_path)])
    rows = [None, {"padding": 3}, {"padding": 7}]
    assert found == [[{"embedding": row}, [[8, 4], [{"batch": 1}, 4]]] for row in rows]


def refused(folder: str) -> list[str]:
    """What is said of networks and arguments that cannot become a model file."""
    import mindspore as ms

    import mindspore_networks as networks
    import thinwire
    import thinwire.mindspore

    os.chdir(folder)  # where MindSpore leaves the graphs that it cannot compile
    said = []
    path = pathlib.Path("model.json")
    images = networks.example((1, 32, 32))
    for network, inputs, to in [
        (networks.Odd("roll"), [images], path),
        (networks.Odd("half"), [images], path),
        (networks.Odd("choose"), [images], path),
        (networks.Odd("two"), [images], path),
        (networks.Odd("two"), [networks.example((16,))], path),
        (networks.Odd("names"), [images], path),
        (networks.Words(scale_grad_by_freq=True), [networks.example((4,))], path),
        (networks.LeNet().to_float(ms.float16), [images], path),
        (networks.LeNet(), [ms.Tensor(numpy.zeros((2, 3, 32, 32), numpy.float32))], path),
        (networks.LeNet(), [images], "model.onnx"),
        (networks.LeNet(), [], path),
        (networks.LeNet(), [3], path),
        (LookupError(), [images], path),
    ]:
        try:
            thinwire.mindspore.export_graph(network, *inputs, path=to)
            said.append("written")
        except thinwire.InvalidError as error:
            said.append(str(error))
    assert not path.exists()
    return said


def test_what_is_not_supported_is_named_with_its_place(tmp_path, ranks):
    (said,) = ranks(1, refused, arguments=[str(tmp_path)])
    expected = [
        "node 'inner.Roll': operator Roll is not supported",
        "node 'inner.Cast': it casts to a type other than float32",
        "node 'inner.Switch': control flow that depends on values is not supported",
        "the network has 2 outputs, expected one",
        "node 'inner.Add': operator Add of an input of indices is not supported",
        "mindspore.export cannot compile Odd: ",
        "node 'table.Embedding': max_norm is None and scale_grad_by_freq True, expected neither",
        "node 'Cast': it casts to a type other than float32",
        "mindspore.export cannot compile LeNet: ",
        "path is 'model.onnx', expected one that ends in .json",
        "there are 0 examples, expected 1 or more",
        "the first example is int, expected a tensor",
        "network is LookupError, expected a mindspore.nn.Cell",
    ]
    assert len(said) == len(expected)
    for line, begin in zip(said, expected):
        assert line.startswith(begin) and "\n" not in line, line
