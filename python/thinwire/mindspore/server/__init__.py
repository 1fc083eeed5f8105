"""Parameter servers for MindSpore: embeddings whose tables are stored outside of the workers.

    server = thinwire.mindspore.ParameterServer(optimizer="adagrad:lr=0.1", consistency="async")
    stepper = thinwire.mindspore.ServerOptimizer(server, network)      # joins the job
    with server:
        model.train(epochs, data, callbacks=[stepper])                 # pulls and pushes rows in each step

`network` uses `ServerEmbedding` in place of `nn.Embedding`.
"""
