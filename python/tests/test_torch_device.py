"""Gradients that are encoded on a device: the parameters are those of host memory, bit for bit.

The device is one of a simulated driver, whose kernels run on the host, late and in any order, and whose
memory torch sees as memory of the CPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import test_torch_golden as golden

pytestmark = pytest.mark.needs("torch")

KERNELS = Path(__file__).parents[2] / "target" / "kernels"
LATE = 7
OTHERS = ("e5m2", "int3", "int4:stochastic", "natural", "vote", "int4:least-squares")


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels are compiled once, before ranks are there, which would all do it."""
    from thinwire._core import Cuda

    if not hasattr(Cuda, "simulated"):
        pytest.skip("the package was built without --features simulated")
    monkeypatch.setenv("THINWIRE_KERNELS", str(KERNELS))
    if Cuda.simulated(LATE) is None:
        pytest.skip("no C++ compiler for the kernels of the simulated device")
    yield


def test_parameters_are_the_recorded_ones(ranks: Any) -> None:
    recorded = json.loads(golden.RECORDED.read_text())["2"]
    for rank, found in enumerate(ranks(2, digests)):
        assert found == {"ddp": recorded["ddp"], "fsdp": recorded["fsdp"][rank]}


def digests() -> dict[str, dict[str, str]]:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    # One rank has no device: a job may mix both.
    used = use_device(dist.get_rank() != 1)
    ddp = {codec: golden.of_ddp(codec) for codec in golden.OF_DDP}
    taken = used.taken
    fsdp = {
        f"{codec}, gathered {gather}": golden.of_fsdp(codec, gather)
        for codec, gather in golden.OF_FSDP
    }
    assert (taken > 0) == (used.taken > taken) == (dist.get_rank() != 1)
    found = {"ddp": ddp, "fsdp": fsdp}
    dist.destroy_process_group()
    return found


def test_every_dtype_and_codec_gives_the_bits_of_host_memory(ranks: Any) -> None:
    for codecs in ranks(2, both):
        for codec, (on_host, on_device, was_used) in codecs.items():
            assert on_device == on_host, codec
            assert was_used


def both() -> dict[str, tuple[str, str, bool]]:
    """Digests of parameters under each codec and dtype, in host memory and on a device."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import thinwire.torch

    dist.init_process_group("gloo")
    found = {}
    half = [("none", torch.float16), ("none", torch.bfloat16), ("int8", torch.bfloat16)]
    for codec, dtype in [*half, *((codec, torch.float32) for codec in OTHERS)]:
        seen = []
        for device in ("host", None):
            used = use_device()
            model = DistributedDataParallel(golden.quadratic().to(dtype), bucket_cap_mb=0.02)
            thinwire.torch.attach(model, codec=codec, warmup_steps=0, device=device)
            seen.append(golden.trained(model))
        found[f"{codec} of {dtype}"] = (*seen, used.taken > 0)
    dist.destroy_process_group()
    return found


def test_a_state_of_a_device_continues_in_host_memory(ranks: Any) -> None:
    for whole, resumed, returned in ranks(2, resumptions):
        assert resumed == whole
        assert returned == whole


def resumptions() -> list[str]:
    """Digests of a training in one piece, and of two that change memory in the middle."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import thinwire.torch

    dist.init_process_group("gloo")
    found = []
    for first, second in [("host", "host"), (None, "host"), ("host", None)]:
        use_device()
        model = DistributedDataParallel(golden.quadratic(), bucket_cap_mb=0.02)
        hook = thinwire.torch.attach(model, codec="int4", warmup_steps=0, device=first)
        golden.trained(model)
        state = hook.state_dict()
        again = DistributedDataParallel(model.module, bucket_cap_mb=0.02)
        resumed = thinwire.torch.attach(again, codec="int4", warmup_steps=0, device=second)
        resumed.load_state_dict(state)
        found.append(golden.trained(again))
    dist.destroy_process_group()
    return found


def test_a_nan_skips_the_step_on_all_ranks(ranks: Any) -> None:
    for first, last in ranks(2, with_nan):
        assert first == "nan"
        assert last == "finite"


def with_nan() -> list[str]:
    """What gradients are after a step in which rank 0 has a NaN, and after the next one."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import thinwire.torch

    dist.init_process_group("gloo")
    use_device()
    model = DistributedDataParallel(golden.quadratic(), bucket_cap_mb=0.02)
    thinwire.torch.attach(model, codec="int8", warmup_steps=0)
    found = []
    for scale in [float("nan") if dist.get_rank() == 0 else 1.0, 1.0]:
        model.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (model() * scale).backward()
        every = torch.cat([each.grad.reshape(-1) for each in model.parameters()])
        kinds = {"nan": every.isnan().all(), "finite": every.isfinite().all()}
        found.append(next((kind for kind, is_so in kinds.items() if is_so), "mixed"))
    dist.destroy_process_group()
    return found


def test_what_a_device_does_not_do_is_told_once(ranks: Any) -> None:
    for told in ranks(2, warnings_of):
        assert [len(lines) for lines in told.values()] == [0, 1, 1, 1]
        assert [lines[0].split(" is computed on the CPU")[0] for lines in [*told.values()][1:]] == [
            "codec randomk:0.1",
            "momentum correction",
            "feedback ef21",
        ]


def warnings_of() -> dict[str, list[str]]:
    """Warnings of trainings on a device, by their options."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import thinwire.torch

    dist.init_process_group("gloo")
    use_device()
    found = {}
    for options in [
        {"codec": "int8"},
        {"codec": "randomk:0.1"},
        {"codec": "dgc:0.1", "momentum_correction": 0.9},
        {"codec": "topk:0.1", "feedback": "ef21"},
    ]:
        model = DistributedDataParallel(golden.quadratic(), bucket_cap_mb=0.02)
        thinwire.torch.attach(model, warmup_steps=0, **options)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            golden.trained(model)
        lines = [str(each.message) for each in told]
        found[str(options)] = [line for line in lines if "computed on the CPU" in line]
    dist.destroy_process_group()
    return found


def test_a_device_that_cannot_be_used_is_told_once_and_gradients_are_staged() -> None:
    import torch

    import thinwire.torch.device as devices

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.warns(UserWarning, match="gradients on cuda:0 are copied to host memory") as told:
        assert devices.opened(torch.device("cuda", 0)) is None
    assert len(told) == 1
    assert "\n" not in str(told[0].message)
    assert "device='host'" in str(told[0].message)


def test_a_captured_backward_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    import thinwire
    import thinwire.torch.device as devices

    class OnCuda:
        is_cuda = True

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(thinwire.InvalidError, match=r"CUDA graph .*no_sync"):
        devices.of(OnCuda())


@pytest.mark.parametrize("device", ["gpu", "cuda:0", 0])
def test_another_device_is_refused(device: Any) -> None:
    import thinwire
    import thinwire.torch

    with pytest.raises(thinwire.InvalidError, match='expected None, .* or "host"'):
        thinwire.torch.hook("int8", device=device)


class Simulated:
    """A simulated device in the place of `thinwire.torch.device.Device`, whose memory is the host's."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.taken = 0
        self._memory: dict[int, Any] = {}

    def take(self, buffer: Any) -> Any:
        """Gradients as f32 in the device's memory, as a torch that has computed them there."""
        import torch

        self.taken += 1
        count = buffer.numel()
        if count not in self._memory:
            floats = (ctypes.c_float * count).from_address(self.core.allocate(count))
            self._memory[count] = torch.frombuffer(floats, dtype=torch.float32)
        # An earlier bucket of this length may be on its way still.
        self.core.synchronize()
        values = self._memory.pop(count)
        values = values.view(buffer.shape)
        values.copy_(buffer)
        return values

    def room(self, buffer: Any) -> Any:
        """Memory for f32 that go to `buffer`."""
        import torch

        return self.take(torch.zeros(buffer.shape))

    def follow(self) -> None:
        """What has been given is there."""

    def give(self, values: Any, buffer: Any) -> None:
        """What a later stream of torch would see."""
        self.core.synchronize()
        buffer.copy_(values)
        self._memory[values.numel()] = values.view(-1)

    def stream(self) -> Any:
        """The core's stream as the current one: what torch does on the host is in its turn."""
        import contextlib

        self.core.synchronize()
        return contextlib.nullcontext()


def use_device(has_one: bool = True) -> Simulated:
    """Lets tensors of the CPU be on a simulated device."""
    import thinwire.torch.device as devices
    from thinwire._core import Cuda

    late = LATE + int(os.environ.get("RANK", "0"))
    simulated = Simulated(Cuda.simulated(late))
    devices.of = lambda tensor: simulated if has_one else None
    return simulated
