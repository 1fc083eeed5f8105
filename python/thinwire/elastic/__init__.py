"""The part of elastic training that all frameworks share.

`Job` goes from epoch to epoch, `Exchange` ends a step on all ranks alike, and `Stream`, `Cursor` and `Deal`
say which samples a rank computes. `Elastic` of `thinwire.torch`, `.mindspore` and `.jax` adds tensors.
"""
