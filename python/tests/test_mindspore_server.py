"""Embeddings on parameter servers under MindSpore: they train as local ones do."""

import pytest

from servers import Job, client

pytestmark = pytest.mark.needs("mindspore")

ROWS, WIDTH, BATCH, STEPS, RATE = 40, 4, 12, 20, 0.3


def batches(part=slice(None)):
    """Ids and labels of each step; some ids are there more than once."""
    import numpy as np

    generator = np.random.default_rng(7)
    for _ in range(STEPS):
        ids = generator.integers(0, ROWS, (BATCH, 2)).astype(np.int32)
        labels = generator.standard_normal((BATCH, 1)).astype(np.float32)
        yield ids[part], labels[part]


def recommender(embedding):
    """A model of two ids."""
    import mindspore as ms
    import numpy as np
    from mindspore import nn, ops

    class Recommender(nn.Cell):
        def __init__(self):
            super().__init__()
            weight = np.linspace(-0.5, 0.5, 2 * WIDTH, dtype=np.float32)[None]
            self.items = embedding
            self.top = nn.Dense(2 * WIDTH, 1, ms.Tensor(weight), ms.Tensor(np.zeros(1, np.float32)))

        def construct(self, ids):
            return self.top(ops.tanh(self.items(ids)).reshape((ids.shape[0], -1)))

    return Recommender()


def by_model(network, optimizer, data, stepper, group):
    """Model.train, one epoch."""
    from mindspore import nn
    from mindspore.train import Model

    import mindspore_models as models
    import thinwire.mindspore

    exchange = thinwire.mindspore.GradExchange("none", group)
    model = Model(network, nn.MSELoss(), optimizer)
    callbacks = [exchange, *([stepper] if stepper else [])]
    model.train(1, models.dataset(data), callbacks=callbacks, dataset_sink_mode=False)


def by_loop(network, optimizer, data, stepper, group):
    """A loop with gradients as values."""
    import mindspore as ms
    from mindspore import nn

    import thinwire.mindspore

    loss = nn.MSELoss()
    average = thinwire.mindspore.exchange(optimizer.parameters, "none", group)

    def forward(ids, labels):
        return loss(network(ids), labels)

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)
    for ids, labels in data:
        _, gradients = gradient(ms.Tensor(ids), ms.Tensor(labels))
        optimizer(average(gradients))
        if stepper is not None:
            stepper.step()


WAYS = {"model": by_model, "loop": by_loop}


def values(parameters):
    """The table and the other parameters, by name."""
    return {name: each.asnumpy().copy() for name, each in parameters.items()}


def train(address, mode, way):
    """Trains as one of two workers, and checks the outcome against one process with nn.Embedding."""
    import mindspore as ms
    import numpy as np
    from mindspore import nn

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    models.use(mode)
    group = thinwire.init()
    network = recommender(thinwire.mindspore.ServerEmbedding(ROWS, WIDTH, initial="normal:0.5"))
    optimizer = nn.SGD(network.trainable_params(), RATE)
    server = client(address, f"sgd:lr={RATE}", servers=1)
    stepper = thinwire.mindspore.ServerOptimizer(server, network)
    with server:
        began = values(stepper.full_parameters())
        part = slice(group.rank, None, group.world)
        WAYS[way](network, optimizer, batches(part), stepper, group)
        ended = values(stepper.full_parameters())
        assert stepper.steps == STEPS and server.world == 2

    table = ms.Tensor(began["items.embedding_table"])
    plain = recommender(nn.Embedding(ROWS, WIDTH, embedding_table=table))
    alone = thinwire.init(0, 1, "127.0.0.1:0")
    WAYS["loop"](plain, nn.SGD(plain.trainable_params(), RATE), batches(), None, alone)
    expected = {name: each.asnumpy() for name, each in plain.parameters_and_names()}
    assert ended.keys() == expected.keys()
    for name, each in expected.items():
        np.testing.assert_allclose(ended[name], each, rtol=0, atol=1e-5)
        assert np.abs(each - began[name]).max() > 1e-2
    return {name: each.tolist() for name, each in ended.items()}


@pytest.mark.parametrize(
    "mode, way", [("pynative", "loop"), ("pynative", "model"), ("graph", "model")]
)
def test_sync_with_sgd_is_training_in_one_process(ranks, tmp_path, mode, way):
    job = Job(tmp_path, workers=2, servers=1)
    first, second = ranks(2, train, arguments=[job.address, mode, way])
    assert first == second


def err(address):
    """Makes mistakes."""
    import mindspore as ms
    import numpy as np
    from mindspore import nn

    import mindspore_models as models
    import thinwire
    from thinwire.mindspore import ParameterServer, ServerEmbedding, ServerOptimizer, guard

    models.use("pynative")

    def said(call, *arguments):
        with pytest.raises(thinwire.Error) as caught:
            call(*arguments)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    alone = ParameterServer("sgd:lr=1")
    found = said(ServerOptimizer, alone, nn.Dense(1, 1))
    assert found == "Dense has no thinwire.mindspore.ServerEmbedding"
    network = ServerEmbedding(ROWS, WIDTH)
    server = client(address, servers=1)
    stepper = ServerOptimizer(server, network)

    def guarded(ids):
        with guard(stepper):
            network(ms.Tensor(ids)).asnumpy()

    with server:
        network(ms.Tensor(np.array([3], np.int32))).asnumpy()
        found = said(stepper.step)
        assert found.startswith(
            "table 'embedding' has no gradient in this step (hint: give the other"
        )
        network.anchor.requires_grad = False  # a frozen table needs no gradient
        network(ms.Tensor(np.array([3], np.int32))).asnumpy()
        stepper.step()
        found = said(guarded, np.array([1, ROWS], np.int32))
        assert found == "row 40 of table 'embedding', expected below 40"


def test_mistakes_are_named_in_one_line(ranks, tmp_path):
    job = Job(tmp_path, servers=1)
    ranks(1, err, arguments=[job.address])
