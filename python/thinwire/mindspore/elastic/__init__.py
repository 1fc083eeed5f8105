"""Elastic jobs: ranks die, leave and join under `Model.train`.

    elastic = thinwire.mindspore.Elastic(network, optimizer, batch=512, codec="auto")
    data = elastic.dataset(source, seed=0)
    model = Model(network, loss, elastic.optimizer)
    model.train(epochs, data, callbacks=[elastic.callback()])

A step in which a rank is lost is void: nothing of it is applied, and the remaining ranks repeat it
with the same samples.
"""
