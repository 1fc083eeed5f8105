"""Training with parameter servers, without any framework.

`ParameterServer` is a worker's connection to the job, and `ServedTable` one of the job's tables.
Rows and values are NumPy arrays. `thinwire.torch` and `thinwire.mindspore` build on this module,
with tensors and autograd.
"""
