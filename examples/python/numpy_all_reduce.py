"""The average of an array over all ranks, on NumPy alone.

    torchrun --nproc-per-node 2 examples/python/numpy_all_reduce.py
    thinwire run --ranks 2 -- python examples/python/numpy_all_reduce.py

Rank 0 prints it: 0.5 everywhere for two ranks.
"""

import numpy

import thinwire

group = thinwire.init()  # a world of one unless a launcher says otherwise
array = numpy.full(4, group.rank, numpy.float32)
group.all_reduce(array, average=True)  # in place
if group.rank == 0:
    print(f"{group.world} ranks, average {array.tolist()}")
