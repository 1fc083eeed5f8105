"""The part of training with parameter servers that is the same for every framework.

`ParameterServer` is the job as a worker uses it, and `ServedTable` one of its tables. `thinwire.torch` and
`thinwire.mindspore` add tensors and gradients; here rows and values are NumPy arrays.
"""
