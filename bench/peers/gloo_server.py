"""Reduce of f32 to rank 0 and broadcast from it by gloo: a push and a pull without servers.

Started once per rank as gloo.py is. Rank 0 prints one JSON line. A repetition takes as long as its slowest
rank.

    python bench/peers/gloo_server.py BYTES RUNS
"""

import json
import os
import statistics
import sys
import time


def main() -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", os.environ.get("NETWORK_INTERFACE", "lo"))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    size, runs = int(sys.argv[1]), int(sys.argv[2])
    values = torch.ones(size // 4)
    seconds = torch.tensor([push_pull(dist, values.fill_(1.0)) for _ in range(runs + 1)][1:])
    assert values[-1] == dist.get_world_size(), "wrong sum"
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        line = {
            "peer": "gloo",
            "world": dist.get_world_size(),
            "servers": 0,
            "backups": 0,
            "format": "f32",
            "bytes": size,
            "seconds_median": statistics.median(seconds.tolist()),
            "seconds_min": seconds.min().item(),
            "seconds_max": seconds.max().item(),
            "runs": runs,
            "network": os.environ.get("NETWORK", "unknown"),
        }
        print(json.dumps(line), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def push_pull(dist, values) -> float:
    dist.barrier()
    start = time.perf_counter()
    dist.reduce(values, 0)
    dist.broadcast(values, 0)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
