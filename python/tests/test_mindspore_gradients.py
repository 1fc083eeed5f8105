"""The reducer and the exchange on gradients of every dtype and shape."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("mindspore")
SHAPES = ((3, 5), (), (1,), (7, 1, 2), (257,))


def parameters_of(ms, dtypes):
    """A parameter for each shape and dtype; bfloat16 scalars leave graphs as wrong Python numbers."""
    return [
        ms.Parameter(ms.ops.zeros(shape, dtype), name=f"{dtype}{index}")
        for dtype in dtypes
        for index, shape in enumerate(SHAPES)
        if (shape, dtype) != ((), ms.bfloat16)
    ]


def averages() -> dict[str, list[list[float]]]:
    """What each way gives for gradients that are rank + 1 times 0.5, 1.5, 2.5, ..."""
    import mindspore as ms
    import numpy as np

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    group = thinwire.init()
    answers = {}
    for mode in models.MODES:
        models.use(mode)
        parameters = parameters_of(ms, (ms.float32, ms.float16, ms.bfloat16))
        ramps = [np.arange(each.size).reshape(each.shape) + 0.5 for each in parameters]
        gradients = tuple(
            models.tensor((group.rank + 1) * ramp, each.dtype)
            for ramp, each in zip(ramps, parameters)
        )
        for name in ("reducer", "exchange"):
            average = getattr(thinwire.mindspore, name)(parameters, "none", group)
            found = average(gradients)
            pairs = zip(found, parameters)
            assert all(isinstance(one, float) or one.dtype == other.dtype for one, other in pairs)
            answers[f"{mode} {name}"] = [values(one) for one in found]
    answers["expected"] = [values(models.tensor(1.5 * each, ms.float32)) for each in ramps]
    return answers


def values(tensor) -> list[float]:
    """All elements in order; Graph mode gives a scalar as a Python number."""
    if isinstance(tensor, float):
        return [tensor]
    import mindspore as ms

    return [float(each) for each in tensor.astype(ms.float32).asnumpy().reshape(-1)]


def test_averages_are_right_in_every_dtype(ranks):
    first, second = ranks(2, averages)
    assert first == second
    expected = first.pop("expected")
    for found in first.values():
        for one, wanted in zip(found, expected):
            assert one == pytest.approx(wanted, rel=2**-7)


def compiled() -> int:
    """How many graphs three calls from Python in Graph mode make, with other gradients in each."""
    import mindspore as ms

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    models.use("graph")
    parameter = ms.Parameter(ms.ops.zeros((3, 2), ms.float32), name="weight")
    reducer = thinwire.mindspore.reducer([parameter], "none", thinwire.init())
    for number in range(3):
        (average,) = reducer((ms.ops.full((3, 2), float(number), dtype=ms.float32),))
        assert values(average) == [float(number)] * 6
    return len(reducer.compile_cache)


def test_a_graph_is_compiled_once(ranks):
    assert ranks(1, compiled) == [1]


def strided() -> list[list[float]]:
    """The averages of a gradient that is a transposed view on rank 1, in PyNative mode."""
    import mindspore as ms
    import numpy as np

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    models.use("pynative")
    group = thinwire.init()
    parameter = ms.Parameter(ms.ops.zeros((3, 2), ms.float32), name="weight")
    view = models.tensor(np.arange(6).reshape(2, 3)).T
    assert not view.is_contiguous()
    gradient = view if group.rank == 1 else view.contiguous()
    found = []
    for make in (thinwire.mindspore.reducer, thinwire.mindspore.exchange):
        found.append(values(make([parameter], "none", group)((gradient,))[0]))
    return found


def test_a_strided_gradient_keeps_its_order(ranks):
    for found in ranks(2, strided):
        assert found == [[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]] * 2


def scaled() -> list[bool]:
    """Whether all averages are NaN where a loss scaler asked for that, and whether the next are good."""
    import mindspore as ms
    import numpy as np

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    group = thinwire.init()
    seen = []
    for mode in models.MODES:
        models.use(mode)
        parameters = parameters_of(ms, (ms.float32,))
        for make in (thinwire.mindspore.reducer, thinwire.mindspore.exchange):
            average = make(parameters, "topk:0.5", group, non_finite="nan")
            good = tuple(ms.ops.ones(each.shape, each.dtype) for each in parameters)
            bad = tuple(each * float("nan") for each in good) if group.rank == 1 else good
            seen.append(all(np.isnan(values(each)).all() for each in average(bad)))
            seen.append(all(np.isfinite(values(each)).all() for each in average(good)))
    return seen


def test_a_loss_scaler_sees_nan_on_all_ranks_and_goes_on(ranks):
    for seen in ranks(2, scaled):
        assert all(seen) and len(seen) == 8


def sparse(mode: str) -> list[str]:
    """What every way to exchange says of a table with sparse gradients, some of which have its shape."""
    import mindspore as ms
    from mindspore import nn
    from mindspore.train import Model

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    models.use(mode)
    group = thinwire.init()
    network = nn.SequentialCell(nn.EmbeddingLookup(24, 8), nn.Flatten(), nn.Dense(24, 1))
    parameters = nn.SGD(network.trainable_params()).parameters
    exchange = thinwire.mindspore.GradExchange("none", group)
    model = Model(network, nn.MSELoss(), nn.SGD(network.trainable_params()))
    data = models.dataset([(np_ids(), np_labels())])
    said = []
    for call in (
        lambda: thinwire.mindspore.reducer(parameters, "none", group),
        lambda: thinwire.mindspore.exchange(parameters, "none", group),
        lambda: model.train(1, data, callbacks=[exchange], dataset_sink_mode=False),
    ):
        with pytest.raises(thinwire.InvalidError) as caught:
            call()
        said.append(str(caught.value))
    dense = nn.EmbeddingLookup(24, 8, target="DEVICE", sparse=False)
    average = thinwire.mindspore.exchange(dense.trainable_params(), "none", group)
    with pytest.raises(thinwire.InvalidError) as caught:
        average(((ms.ops.zeros(24), ms.ops.zeros((24, 8)), (24, 8)),))
    return [*said, str(caught.value)]


def np_ids():
    """As many ids as the table has rows."""
    import numpy as np

    return np.zeros((8, 3), np.int32)


def np_labels():
    """A label for each."""
    import numpy as np

    return np.zeros((8, 1), np.float32)


def test_sparse_gradients_are_refused_by_name(ranks):
    for found in ranks(2, sparse, arguments=["pynative"]):
        *of_lookups, of_gradient = found
        for said in of_lookups:
            assert said.startswith("0.embedding_table has sparse gradients, expected dense ones (")
            assert "sparse=False" in said and "\n" not in said
        assert of_gradient.startswith(
            "the gradient of embedding_table is a tuple, expected a dense"
        )
