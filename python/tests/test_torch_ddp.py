"""The hook of DDP: the numbers of DDP itself, and whatever DDP is used with."""

import functools
import warnings

import pytest

import launch

pytestmark = pytest.mark.needs("torch")

LOSSY = ["f16", "bf16", "int8", "int4", "int8:stochastic", "topk:0.1", "powersgd:2", "auto"]


def both(name, steps, codec="none", accumulate=1, dtype=None, **options):
    """Trains with DDP alone and with the hook: the difference, and a hash of the parameters."""
    import torch

    import thinwire.torch
    from torch_models import Training, digest, weights, without_hook, wrapped

    dtype = dtype and getattr(torch, dtype)
    expected = without_hook(name, steps, accumulate, dtype, **options)
    hook = thinwire.torch.hook(codec, warmup_steps=0)
    model = wrapped(name, hook, dtype=dtype, **options)
    training = Training(name, model).run(steps, accumulate)
    return {
        "difference": (expected - weights(model)).abs().max().item(),
        "digest": digest(model),
        "fell": training.fell(),
        "codecs": [each["codec"] for each in hook[0].exchange_plan()["assignments"]],
        "sent": sum(each["sent_bytes"] for each in hook[0].record()["buckets"]),
    }


def several(cases):
    """Several cases in one process group: starting ranks takes longer than training them."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    results = {label: both(*case.pop("args"), **case) for label, case in cases.items()}
    dist.destroy_process_group()
    return results


@functools.cache
def trained(world):
    """All cases of one number of ranks, run once: for each label what every rank returned."""
    cases = {name: {"args": (name, 50)} for name in ("mlp", "cnn", "gpt")}
    if world == 2:
        cases |= {f"lossy {codec}": {"args": ("gpt", 40, codec)} for codec in LOSSY}
        cases["accumulation"] = {"args": ("mlp", 10), "accumulate": 3}
        cases["unused"] = {"args": ("branches", 10), "find_unused_parameters": True}
        cases["static"] = {"args": ("mlp", 10), "static_graph": True}
        cases["static, two dtypes"] = {"args": ("mixed", 10), "static_graph": True}
        cases["views"] = {"args": ("cnn", 10), "gradient_as_bucket_view": True}
        cases["batched copies"] = {"args": ("mlp", 10), "batched_grad_copy": True}
        cases["lazy buckets"] = {"args": ("mlp", 10), "lazy_bucket_allocation": True}
        cases["two dtypes"] = {"args": ("mixed", 10)}
        cases["bfloat16"] = {"args": ("mlp", 10), "dtype": "bfloat16"}
        cases["float16"] = {"args": ("mlp", 10), "dtype": "float16"}
    outcomes = launch.run(world, several, arguments=[cases], wait_for_all=False)
    by_rank = launch.results(outcomes)
    return {label: [results[label] for results in by_rank] for label in cases}


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt"])
def test_none_equals_ddp_over_gloo(model, world):
    results = trained(world)[model]
    assert max(result["difference"] for result in results) <= 1e-6
    assert len({result["digest"] for result in results}) == 1


@pytest.mark.parametrize("codec", LOSSY)
def test_lossy_codecs_train_and_ranks_end_bit_identical(codec):
    results = trained(2)[f"lossy {codec}"]
    assert len({result["digest"] for result in results}) == 1
    assert all(result["fell"] for result in results)
    assert codec == "auto" or codec in results[0]["codecs"]
    assert codec == "auto" or results[0]["sent"] < trained(2)["gpt"][0]["sent"]


@pytest.mark.parametrize(
    "way",
    [
        *["accumulation", "unused", "static", "static, two dtypes", "two dtypes"],
        *["views", "batched copies", "lazy buckets", "bfloat16"],
    ],
)
def test_every_way_of_ddp_gives_its_own_numbers(way):
    results = trained(2)[way]
    assert max(result["difference"] for result in results) <= 1e-6
    assert len({result["digest"] for result in results}) == 1


def test_float16_is_averaged_at_least_as_exactly_as_ddp_does():
    results = trained(2)["float16"]
    assert max(result["difference"] for result in results) <= 1e-3
    assert len({result["digest"] for result in results}) == 1


def test_gradients_on_a_gpu_give_ddps_numbers(ranks):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU: gradients on a device are untested here")
    cases = {"gpu": {"args": ("mlp", 10), "device": "cuda"}}
    results = [result["gpu"] for result in ranks(2, several, arguments=[cases])]
    assert max(result["difference"] for result in results) <= 1e-6
    assert len({result["digest"] for result in results}) == 1


def elsewhere():
    """As if gradients were on a GPU: buckets leave from a thread of their own."""
    from thinwire.torch.step import Step

    Step.is_elsewhere = property(lambda step: True)
    return several({"elsewhere": {"args": ("mlp", 20)}})["elsewhere"]


def test_buckets_that_leave_from_another_thread_give_ddps_numbers(ranks):
    results = ranks(2, elsewhere)
    assert max(result["difference"] for result in results) <= 1e-6
    assert len({result["digest"] for result in results}) == 1


def scale_with_an_infinity(codecs):
    """Rank 1 alone has an infinite gradient in step 3: after each step the parameters and the scale."""
    import torch
    import torch.distributed as dist

    import thinwire.torch
    from torch_models import Training, digest, wrapped

    dist.init_process_group("gloo")
    results = []
    for codec in codecs:
        model = wrapped("mlp", thinwire.torch.hook(codec, warmup_steps=0))
        training, scaler = Training("mlp", model), torch.amp.GradScaler("cpu", init_scale=1024.0)
        steps = []
        for step in range(6):
            training.optimizer.zero_grad()
            loss = scaler.scale(training.loss())
            poisoned = step == 3 and dist.get_rank() == 1
            (loss * float("inf") if poisoned else loss).backward()
            scaler.step(training.optimizer)
            scaler.update()
            steps.append((digest(model), scaler.get_scale()))
        results.append(steps)
    dist.destroy_process_group()
    return results


def test_an_infinity_on_one_rank_skips_the_step_on_all(ranks):
    first, second = ranks(2, scale_with_an_infinity, arguments=[["none", "int8", "powersgd:2"]])
    assert first == second
    for steps in first:
        digests, scales = zip(*steps, strict=True)
        assert [step for step in range(1, 6) if digests[step] == digests[step - 1]] == [3]
        assert scales == (1024, 1024, 1024, 512, 512, 512)


def at_once():
    """Two models with hooks of their own in one backward, and one that finishes its data earlier."""
    import torch.distributed as dist

    import thinwire.torch
    from torch_models import Training, digest, weights, wrapped

    dist.init_process_group("gloo")
    digests = []
    for hooks in (None, None), (thinwire.torch.hook("none"), thinwire.torch.hook("none")):
        first, second = (Training("mlp", wrapped("mlp", hook)) for hook in hooks)
        for _ in range(5):
            for training in (first, second):
                training.optimizer.zero_grad()
            (first.loss() + 2 * second.loss()).backward()
            first.optimizer.step()
            second.optimizer.step()
        digests.append([digest(first.model), digest(second.model)])
    uneven = []
    for hook in (None, thinwire.torch.hook("none")):
        training = Training("mlp", wrapped("mlp", hook))
        with training.model.join():
            training.run(4 + 3 * dist.get_rank())
        uneven.append(weights(training.model))
    difference = (uneven[0] - uneven[1]).abs().max().item()
    dist.destroy_process_group()
    return digests, difference


def test_two_models_in_one_backward_and_uneven_inputs_give_ddps_numbers(ranks):
    for (plain, hooked), difference in ranks(2, at_once):
        assert hooked == plain
        assert difference <= 1e-6


def compiled():
    """A compiled model with the hook against an eager one with gloo."""
    import torch
    import torch.distributed as dist

    import thinwire.torch
    from torch_models import Training, digest, weights, wrapped

    dist.init_process_group("gloo")
    plain = Training("mlp", wrapped("mlp", bucket_cap_mb=25)).run(5)
    model = wrapped("mlp", thinwire.torch.hook("none"), bucket_cap_mb=25)
    try:
        training = Training("mlp", torch.compile(model)).run(5)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        return str(error)
    difference = (weights(plain.model) - weights(training.model)).abs().max().item()
    dist.destroy_process_group()
    return difference, digest(model)


def test_a_compiled_model_gives_ddps_numbers(ranks):
    results = ranks(2, compiled)
    if isinstance(results[0], str):
        pytest.skip(f"torch.compile finds no compiler that works: {results[0]}")
    assert max(difference for difference, _ in results) <= 1e-5
    assert len({digest for _, digest in results}) == 1


def alone():
    """What averages in one process, and whether the weights are those without the hook."""
    import torch.distributed as dist

    import thinwire.torch
    from torch_models import Training, digest, wrapped

    dist.init_process_group("gloo")
    hook = thinwire.torch.hook()
    plain, hooked = (Training("gpt", wrapped("gpt", each)).run(20) for each in (None, hook))
    dist.destroy_process_group()
    return type(hook[0]._averager).__name__, digest(plain.model) == digest(hooked.model)


def test_one_rank_alone_changes_nothing_and_pays_nothing(ranks):
    assert ranks(1, alone) == [["Alone", True]]


def by_names():
    """The codecs of buckets, by the names that are in them, and what is said of names without one."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import thinwire
    import thinwire.torch
    from torch_models import MODELS, Training, digest, wrapped

    dist.init_process_group("gloo")
    found = {}
    rules = {"4.*": "none", "[0-2].weight": "int8", "*": "int4"}
    of_name = {"0.weight": "int8", "2.weight": "int8"}
    for label, codec in (("mapping", rules), ("function", lambda name: of_name.get(name, "none"))):
        model = wrapped("mlp", bucket_cap_mb=100)
        hook = thinwire.torch.attach(model, codec)
        training = Training("mlp", model).run(40)
        buckets = {each["name"]: each["codec"] for each in hook.record().get("buckets", [])}
        found[label] = buckets, digest(model), bool(training.fell())
        again = thinwire.torch.attach(wrapped("mlp"), {"*": "int8"})
        if dist.get_world_size() > 1:
            with pytest.raises(thinwire.InvalidError, match=r"this one has codec \*=int8 \(hint"):
                again.load_state_dict(hook.state_dict())
    model = wrapped("mlp")
    thinwire.torch.attach(model, {"0.*": "int8"})
    try:
        Training("mlp", model).run(1)
    except thinwire.Error as error:
        found["unnamed"] = str(error)
    layers = MODELS["mlp"]()
    layers[0].weight.requires_grad_(False)
    model = DistributedDataParallel(layers)
    thinwire.torch.attach(model, {"0.weight": "none", "9.*": "none", "*": "int8"})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        Training("mlp", model).run(1)
    found["warned"] = [str(each.message) for each in told if "codec" in str(each.message)]
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("world", [1, 2])
def test_codecs_by_names_of_parameters(ranks, world):
    results = ranks(world, by_names)
    for result in results:
        unnamed = result["unnamed"]
        assert "codec 0.*=int8 has no pattern for " in unnamed and "\n" not in unnamed, unnamed
    # A pattern may match a parameter that is not trained.
    said = "codec 9.*=none: 9.* matches no parameter; their names are such as 0.weight, 0.bias, 2.weight"
    assert [result["warned"] for result in results] == [[said], *[[]] * (world - 1)]
    if world == 1:
        return
    for label in ("mapping", "function"):
        (buckets, first, fell), (_, second, _) = (result[label] for result in results)
        assert first == second and fell
        codecs = {
            name: codec
            for names, codec in buckets.items()
            for name in names.split(" (")[0].split(" … ")
        }
        assert {codecs["0.weight"], codecs["2.weight"]} == {"int8"}, codecs
        # Vectors are never compressed.
        assert {codecs["4.weight"], codecs["0.bias"]} == {"none"}, codecs
