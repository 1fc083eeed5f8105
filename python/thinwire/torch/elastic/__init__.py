"""Elastic jobs: ranks die, leave and join while a model trains.

    elastic = thinwire.torch.Elastic(model, optimizer, batch=512, codec="auto")
    loader = elastic.loader(data, num_workers=2, seed=0)
    for inputs, labels in loader:
        optimizer.zero_grad()
        criterion(elastic.model(inputs), labels).backward()
        optimizer.step()                                       # does nothing after a void step

A step in which a rank is lost is void: nothing of it is applied, and the remaining ranks repeat it
with the same samples.
"""
