"""Elastic jobs: ranks die, leave and join while a pytree is trained.

    elastic = thinwire.jax.Elastic(state, params, batch=512, codec="auto")
    loader = elastic.loader((inputs, labels), seed=0)
    for number in loader.passes(10):
        for batch in loader:
            loss = elastic.step(gradient, update, *batch)      # None after a void step

A step in which a rank is lost is void: the state is unchanged, and the remaining ranks repeat
it with the same samples.
"""
