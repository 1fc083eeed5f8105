"""Elastic jobs: ranks die, leave and join under `Model.fit`.

    model.compile("adam", loss)
    elastic = thinwire.keras.Elastic(model, batch=512, codec="auto")
    data = elastic.dataset((inputs, labels), seed=0)
    model.fit(
        data, epochs=10, initial_epoch=elastic.initial_epoch, callbacks=[elastic.callback()]
    )

A step in which a rank is lost is void: it changes no weight, and the next step repeats it with the
same samples, divided among the ranks that remain.
"""

from .job import Elastic

__all__ = ["Elastic"]
