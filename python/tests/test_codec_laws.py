"""Codecs from files: a training refuses one that breaks a law, on all ranks alike, unless told not to."""

import tempfile
from pathlib import Path

import pytest

import thinwire

TERNGRAD = Path(__file__).parents[2] / "examples/codecs/terngrad.codec"


def broken():
    """The path of a codec that claims to be unbiased and is not."""
    text = TERNGRAD.read_text()
    text = text.replace("digits_up(max(abs(x)), 17)", "digits(max(abs(x)), 9)")
    text = text.replace("variance min", "variance 1 + min")
    path = Path(tempfile.mkdtemp()) / "three.codec"
    path.write_text(text)
    return str(path)


def said(action):
    """What an action raises."""
    try:
        action()
    except thinwire.Error as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def refused(text):
    """Whether a text names the law and the numbers in one line."""
    law = "breaks a law: random rounding is right in the mean: claims to be unbiased, but the mean"
    return text.startswith("InvalidError: codec three#") and law in text and "\n" not in text


def of_the_core():
    """What the core's exchanges say, checked and not."""
    from thinwire import _core

    path, group = broken(), thinwire.init().core
    described = [("weight", [64, 64], "f32", 0)]

    def start(**options):
        return said(lambda: _core.Synchronizer(group, described, codec=path, **options))

    scatters = [
        said(lambda: _core.Scatter(group, path)),
        said(lambda: _core.Scatter(group, path, 0, True)),
    ]
    return [start(), *scatters[:1]], [start(unchecked=True), *scatters[1:]]


def test_a_codec_that_breaks_a_law_is_refused_unless_unchecked(ranks):
    for checked, unchecked in ranks(2, of_the_core):
        assert all(map(refused, checked)), checked
        assert unchecked == ["nothing", "nothing"]


def of_ddp():
    """What backward says under a hook, checked and not."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import thinwire.torch

    dist.init_process_group("gloo")
    path, seen = broken(), []
    for options in [{}, {"unchecked": True}]:
        model = DistributedDataParallel(torch.nn.Linear(64, 64))
        thinwire.torch.attach(model, path, **options)
        seen.append(said(lambda model=model: model(torch.ones(1, 64)).sum().backward()))
    return seen


@pytest.mark.needs("torch")
def test_a_hook_takes_the_keyword(ranks):
    for checked, unchecked in ranks(2, of_ddp):
        assert refused(checked) and unchecked == "nothing", (checked, unchecked)
