"""The part of elastic training that all frameworks share.

`Job` goes from epoch to epoch, `Exchange` ends a step in the same way on all ranks, and `Stream`,
`Cursor` and `Deal` say which samples a rank computes. `Elastic` of `thinwire.torch`, `.mindspore`
and `.jax` adds tensors.
"""
