"""Parameter servers: tables of rows that are stored outside of the workers that train them.

    server = thinwire.torch.ParameterServer(optimizer="adagrad:lr=0.1", consistency="async")
    optimizer = thinwire.torch.ServerOptimizer(server, model)      # joins the job
    with server:
        for ids, labels in data:
            optimizer.zero_grad()
            criterion(model(ids), labels).backward()               # pulls the rows of `ids`
            optimizer.step()                                       # pushes their gradients

`model` uses `ServerEmbedding` in place of `nn.Embedding`. Workers do not communicate with each other.
"""
