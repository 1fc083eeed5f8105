"""The c10d backend: `torch.distributed.init_process_group("thinwire")`.

    import thinwire.torch
    torch.distributed.init_process_group("thinwire")

Code that was written for gloo or NCCL runs on it: DDP, FSDP2, DTensor, distributed checkpoints. Every
process group, `new_group` included, has connections of its own; its ranks find each other through the
store that c10d gives. Collectives of one group run in the order in which they are called, messages
beside them. Exchanges are lossless; codecs come with DDP's hook and with `thinwire.torch.fsdp`.

One group serves CPU and CUDA tensors, so it shares a process group with no other backend: in
"cpu:thinwire,cuda:nccl" it serves both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from thinwire.torch import barrier, exchange, sparse
from thinwire.torch.arguments import (
    expect,
    expect_count,
    expect_parts,
    listed,
    one,
    options,
    overlaps,
    row_bytes,
)
from thinwire.torch.group import Connection, connect
from thinwire.torch.mailbox import Mailbox
from thinwire.torch.reduction import Reduction
from thinwire.torch.staging import Staging
from thinwire.torch.work import Callbacks, Queue, Together, Work, seconds

NAME = "thinwire"
DEVICES = ["cpu", "cuda"]
TIMEOUT_S_MIN, TIMEOUT_S_MAX = 0.1, 86_400.0
"""What the core takes."""

Begin = Callable[..., None]


class Named(c10d.Backend):
    """What c10d keeps per device: the group's name, and that it can do nothing special.

    A backend in Python could do the collectives, too, but c10d wraps the works of one so that
    `is_completed` is never true. What is not overridden here, c10d asks itself without end.
    """

    supports_splitting = supports_coalescing = supports_shrinking = False
    supports_reconfigure = supports_window = _supports_time_estimate = False
    options = c10d.Backend.Options(NAME)

    def getBackendName(self) -> str:
        """The name with which it is registered."""
        return NAME


class ProcessGroup(c10d.ProcessGroup):
    """The ranks of a c10d process group over Thinwire; c10d calls it, users call `torch.distributed`."""

    def __init__(self, store: Any, rank: int, connection: Connection, timeout_s: float) -> None:
        """The ranks of `connection`; operations fail after `timeout_s` unless they say otherwise."""
        super().__init__(store, rank, connection.group.world)
        named = Named(rank, connection.group.world)
        for device in DEVICES:
            self._register_backend(torch.device(device), self.BackendType.CUSTOM, named)
        self._set_default_backend(self.BackendType.CUSTOM)
        self.store, self.barriers = store, 0
        self.connection, self.core = connection, connection.group
        self.connected_s = self.timeout_s = timeout_s
        self.queue, self.callbacks, self.mailbox = Queue(), Callbacks(), Mailbox()
        self.coalesced: list[Work] | None = None
        self.calls = 0

    # Collectives

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Reduces every tensor in place."""
        opts, tensors = options(c10d.AllreduceOptions, opts, timeout), listed(tensors)
        reduction, stage = Reduction.of(opts.reduceOp), Staging()
        if len(tensors) == 1 and tensors[0].layout != torch.strided:
            sparse.check(tensors[0], reduction)
            begin = functools.partial(sparse.all_reduce, self.core, tensors[0], reduction)
            return self.run("all_reduce", begin, stage, tensors, opts)
        hosts = [stage.update(tensor) for tensor in tensors]
        for host in hosts:
            reduction.check(host)
        if len(hosts) != 1:
            begin = functools.partial(exchange.all_reduce_many, self.core, hosts, reduction)
            return self.run("all_reduce", begin, stage, tensors, opts)
        begin = functools.partial(exchange.all_reduce, self.core, hosts[0], reduction)
        single = exchange.begins_at_once(hosts[0], reduction)
        return self.run("all_reduce", begin, stage, tensors, opts, single)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        """The root's tensors, everywhere."""
        opts = options(c10d.BroadcastOptions, opts, timeout, "rootRank")
        stage, root = Staging(), opts.rootRank
        hosts = [stage.update(tensor) for tensor in listed(tensors)]

        def begin(done: Any = None) -> None:
            for host in hosts:
                self.core.broadcast(host.data_ptr(), exchange.size(host), root, done=done)

        return self.run("broadcast", begin, stage, listed(tensors), opts, len(hosts) == 1)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Work:
        """Reduces every tensor in place on the root."""
        opts = options(c10d.ReduceOptions, opts, timeout, "rootRank")
        if op is not None:
            opts.reduceOp = op
        reduction, stage = Reduction.of(opts.reduceOp), Staging()
        hosts = [stage.update(tensor) for tensor in listed(tensors)]
        for host in hosts:
            reduction.check(host)

        def begin() -> None:
            for host in hosts:
                exchange.reduce(self.core, host, reduction, opts.rootRank)

        return self.run("reduce", begin, stage, listed(tensors), opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Rank r's i-th input into the r-th tensor of the i-th list of outputs."""
        opts = options(c10d.AllgatherOptions, opts, timeout)
        outputs = [outputs] if isinstance(inputs, torch.Tensor) else outputs
        stage = Staging()
        sources = [stage.read(tensor) for tensor in listed(inputs)]
        targets = [[stage.write(tensor) for tensor in one] for one in outputs]
        for parts, source in zip(targets, sources):
            expect_parts("all_gather", parts, source, self.rank(), self.size())

        def begin() -> None:
            for target, source in zip(targets, sources):
                exchange.all_gather_list(self.core, target, source)

        return self.run("all_gather", begin, stage, outputs, opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Rank r's i-th input into the i-th tensor of the r-th list of outputs."""
        by_input = [[one[index] for one in outputs] for index in range(len(inputs))]
        return self.allgather(by_input, inputs, opts)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Every rank's input, one after the other, into the output."""
        opts = options(c10d.AllgatherOptions, opts)
        expect("all_gather", output, self.size() * input.numel(), input)
        stage = Staging()
        source, target = stage.read(input), stage.write(output)
        if overlaps(source, target, self.rank()):
            source = stage.scratch(input)
        begin = functools.partial(exchange.all_gather, self.core, target, source)
        return self.run("all_gather", begin, stage, [output], opts, single=True)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """The same for several tensors."""
        for output, input in zip(outputs, inputs):
            expect("all_gather", output, self.size() * input.numel(), input)
        gather = functools.partial(self.all_gather_single, opts=opts)
        return Together(list(map(gather, outputs, inputs)), self)

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> Work:
        """Reduces the r-th input of every list into rank r's output of that list."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = options(c10d.ReduceScatterOptions, opts, timeout)
        reduction, stage = Reduction.of(opts.reduceOp), Staging()
        targets = [stage.write(tensor) for tensor in outputs]
        sources = [[stage.scratch(tensor) for tensor in one] for one in inputs]
        for target, parts in zip(targets, sources):
            reduction.check(target)
            expect_parts("reduce_scatter", parts, target, self.rank(), self.size())

        def begin() -> None:
            for target, parts in zip(targets, sources):
                exchange.reduce_scatter_list(self.core, target, parts, reduction)

        return self.run("reduce_scatter", begin, stage, outputs, opts)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Reduces the r-th part of every rank's input into rank r's output; inputs stay as they are."""
        opts = options(c10d.ReduceScatterOptions, opts)
        expect("reduce_scatter", input, self.size() * output.numel(), output)
        reduction, stage = Reduction.of(opts.reduceOp), Staging()
        target, source = stage.write(output), stage.scratch(input)
        reduction.check(source)
        begin = functools.partial(exchange.reduce_scatter, self.core, target, source, reduction)
        single = exchange.begins_at_once(source, reduction)
        return self.run("reduce_scatter", begin, stage, [output], opts, single)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """The same for several tensors."""
        for output, input in zip(outputs, inputs):
            expect("reduce_scatter", input, self.size() * output.numel(), output)
        scatter = functools.partial(self.reduce_scatter_single, opts=opts)
        return Together(list(map(scatter, outputs, inputs)), self)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Rank r's input into the r-th output on the root."""
        opts = options(c10d.GatherOptions, opts, timeout, "rootRank")
        outputs = [outputs] if isinstance(inputs, torch.Tensor) else outputs
        stage, root = Staging(), opts.rootRank
        source = stage.read(listed(inputs)[0])
        targets = [stage.write(tensor) for tensor in (outputs[0] if outputs else [])]
        if self.rank() == root:
            expect_parts("gather", targets, source, root, self.size())
        begin = functools.partial(exchange.to_root, self.core, targets, source, root)
        return self.run("gather", begin, stage, outputs, opts)

    def gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Every rank's input, one after the other, into the output on the root."""
        root = options(c10d.GatherOptions, opts).rootRank
        parts = output.view(self.size(), *input.shape).unbind() if self.rank() == root else []
        return self.gather([list(parts)], [input], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        """The root's r-th input into rank r's output."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = options(c10d.ScatterOptions, opts, timeout, "rootRank")
        stage, root = Staging(), opts.rootRank
        target = stage.write(outputs[0])
        sources = [stage.read(tensor) for tensor in (inputs[0] if inputs else [])]
        if self.rank() == root:
            expect_parts("scatter", sources, target, root, self.size())
        begin = functools.partial(exchange.from_root, self.core, target, sources, root)
        return self.run("scatter", begin, stage, outputs, opts)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """The r-th input to rank r; rank r's tensor for us into the r-th output."""
        opts = options(c10d.AllToAllOptions, opts)
        stage = Staging()
        sources = [stage.read(tensor) for tensor in inputs]
        targets = [stage.write(tensor) for tensor in outputs]
        expect_count("all_to_all", sources, self.size())
        expect_parts("all_to_all", targets, sources[self.rank()], self.rank(), self.size())
        expect_parts("all_to_all", sources, targets[self.rank()], self.rank(), self.size())
        begin = functools.partial(exchange.all_to_all_list, self.core, targets, sources)
        return self.run("all_to_all", begin, stage, outputs, opts)

    def all_to_all_single(
        self, output: Any, input: Any, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> Work:
        """The r-th rows of the input to rank r, and rank r's for us; no sizes: equal parts."""
        opts = options(c10d.AllToAllOptions, opts)
        stage = Staging()
        source, target = stage.read(input), stage.write(output)
        expect("all_to_all", target, target.numel(), source)
        source_bytes = row_bytes(source, input_sizes, self.size(), "input")
        target_bytes = row_bytes(target, output_sizes, self.size(), "output")
        begin = functools.partial(
            exchange.all_to_all, self.core, target, target_bytes, source, source_bytes
        )
        return self.run("all_to_all", begin, stage, [output], opts, single=True)

    def barrier(self, opts: Any = None, timeout: Any = None) -> Work:
        """Returns when every rank has come here."""
        opts = options(c10d.BarrierOptions, opts, timeout)
        return self.run("barrier", self.core.barrier, Staging(), [], opts, single=True)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier that says which ranks did not come; through the store, beside the collectives."""
        limit_s = self.timeout_s if timeout is None else timeout.total_seconds()
        self.barriers += 1
        shared = dist.PrefixStore(f"monitored/{self.barriers}", self.store)
        barrier.monitored(shared, self.rank(), self.size(), limit_s, wait_all_ranks)

    # The names of these before torch 2.13

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Messages

    def send(self, tensors: Any, to: int, tag: int = 0) -> Work:
        """Sends a tensor to a rank of this group."""
        stage = Staging()
        host = stage.read(one(tensors, "send"))
        message = functools.partial(self.core.send, host.data_ptr(), exchange.size(host), to, tag)
        if to == self.rank():
            message = functools.partial(self.mailbox.send, host, tag)
        return self.post("send", message, stage, tensors, to)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Work:
        """Receives from a rank of this group into a tensor."""
        stage = Staging()
        host = stage.write(one(tensors, "recv"))
        address = host.data_ptr()
        message = functools.partial(self.core.recv, address, exchange.size(host), source, tag)
        if source == self.rank():
            message = functools.partial(self.mailbox.recv, host, tag)
        return self.post("recv", message, stage, tensors, source)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Receives from the only other rank; refuses where there are several, or none.

        # Errors

        NotImplementedError: messages are matched by rank here.
        """
        if self.size() == 2:
            return self.recv(tensors, 1 - self.rank(), tag)
        raise NotImplementedError(
            "thinwire receives from a named rank, not from any (hint: give src, or let every rank "
            "announce with all_gather what it sends)"
        )

    recvAnysource = recv_anysource

    # How works begin

    def run(
        self, name: str, begin: Begin, stage: Staging, result: Any, opts: Any, single: bool = False
    ) -> Work:
        """Begins a collective after those before it.

        One that is a `single` call of the core, without copies, is handed to the core, which keeps the
        order too. Others run in a thread, or here if the caller waits anyway.
        """
        limit_s = seconds(opts.timeout) or self.timeout_s
        work = Work(name, list(result), stage, limit_s, self)
        stage.depart()
        self.calls += 1
        if self.coalesced is not None:
            self.coalesced.append(work)
        waits = not getattr(opts, "asyncOp", True) and limit_s >= self.connected_s
        start = functools.partial(begin, done=work.finish) if single else None
        if waits or start is None or stage.copied or not self.queue.begin(start):
            self.queue.submit(functools.partial(perform, begin, work), here=waits)
        return work

    def post(self, name: str, message: Begin, stage: Staging, tensors: Any, peer: int) -> Work:
        """Begins a message, beside the collectives."""
        work = Work(name, listed(tensors), stage, self.timeout_s, self, peer)
        stage.depart()
        stage.arrive()
        if self.coalesced is not None:
            self.coalesced.append(work)
        message(done=work.finish)
        return work

    def start_coalescing(self, _device: Any = None) -> None:
        """From here to `end_coalescing` works are collected."""
        self.coalesced = []

    def end_coalescing(self, _device: Any = None) -> Work:
        """One work for all since `start_coalescing`."""
        works, self.coalesced = self.coalesced or [], None
        return Together(works, self)

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    # What c10d asks a group

    def getBackendName(self) -> str:
        """The name with which it is registered."""
        return NAME

    def set_timeout(self, timeout: timedelta) -> None:
        """How long operations from now on may take."""
        self.timeout_s = seconds(timeout)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        self.calls = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.calls

    def shutdown(self) -> None:
        """Says goodbye to the other ranks; c10d calls it from `destroy_process_group`."""
        self.core.close()

    def abort(self, reason: str = "the process group was aborted") -> None:
        """Ends the group: the other ranks fail with `reason`."""
        self.core.abort(reason)

    def __repr__(self) -> str:
        """Its rank and size."""
        return f"<thinwire process group, rank {self.rank()} of {self.size()}>"


def perform(begin: Begin, work: Work) -> None:
    """Runs a collective and finishes its work."""
    try:
        work.staging.arrive()
        begin()
    except BaseException as error:
        work.finish(error)
    else:
        work.finish()


def create(opts: Any, _backend_options: Any = None) -> ProcessGroup:
    """What c10d calls for a new process group, on each of its ranks."""
    timeout_s = min(max(seconds(opts.timeout), TIMEOUT_S_MIN), TIMEOUT_S_MAX)
    connection = connect(opts.store, opts.group_rank, opts.group_size, opts.group_id, timeout_s)
    return ProcessGroup(opts.store, opts.group_rank, connection, timeout_s)


def register() -> None:
    """Makes the name "thinwire" known to c10d; again is harmless."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=DEVICES)


register()
