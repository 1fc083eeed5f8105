"""All-reduce of f32 by gloo (torch.distributed), one process per rank.

Started once per rank with torchrun's variables and NETWORK, NETWORK_INTERFACE (bench/network.sh).
Rank 0 prints one JSON line per size. Protocol, the same in every peer: one warm-up, whose time
says how often to repeat; before each repetition a barrier; a repetition takes what its slowest
rank takes; the median over the repetitions.

    python bench/peers/gloo.py BYTES ...
"""

import json
import os
import statistics
import sys
import time

BUDGET_SECONDS = 1.0
RUNS_MIN, RUNS_MAX = 3, 50


def main() -> None:
    network = os.environ.get("NETWORK", "unknown")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", os.environ.get("NETWORK_INTERFACE", "lo"))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for size in map(int, sys.argv[1:]):
        values = torch.ones(size // 4)
        warmup = all_reduce(dist, values)
        runs = torch.tensor([min(RUNS_MAX, max(RUNS_MIN, int(BUDGET_SECONDS / warmup)))])
        dist.broadcast(runs, 0)
        seconds = torch.tensor([all_reduce(dist, values.fill_(1.0)) for _ in range(int(runs))])
        assert values[-1] == dist.get_world_size(), "wrong sum"
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            line = {
                "peer": "gloo",
                "world": dist.get_world_size(),
                "bytes": size,
                "seconds_median": statistics.median(seconds.tolist()),
                "runs": len(seconds),
                "network": network,
            }
            print(json.dumps(line), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def all_reduce(dist, values) -> float:
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(values)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
