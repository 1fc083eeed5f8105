"""The collectives of a process group, as c10d calls them.

Each checks its arguments, copies tensors to the host if needed, and begins as a `Work`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from thinwire.torch import exchange, sparse
from thinwire.torch.arguments import (
    expect,
    expect_count,
    expect_parts,
    listed,
    options,
    overlaps,
    row_bytes,
)
from thinwire.torch.calls import Calls
from thinwire.torch.reduction import Reduction
from thinwire.torch.staging import Staging
from thinwire.torch.work import Together, Work


class Collectives(Calls):
    """The operations of all ranks of a process group together."""

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
        """Copies the root's tensors to all ranks."""
        opts = options(c10d.BroadcastOptions, opts, timeout, "rootRank")
        stage, root = Staging(), opts.rootRank
        core, hosts = self.core, [stage.update(tensor) for tensor in listed(tensors)]

        def begin(done: Any = None) -> None:
            for host in hosts:
                core.broadcast(host.data_ptr(), exchange.size(host), root, done=done)

        return self.run("broadcast", begin, stage, listed(tensors), opts, len(hosts) == 1)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Work:
        """Reduces every tensor in place on the root."""
        opts = options(c10d.ReduceOptions, opts, timeout, "rootRank")
        if op is not None:
            opts.reduceOp = op
        reduction, stage = Reduction.of(opts.reduceOp), Staging()
        core, hosts = self.core, [stage.update(tensor) for tensor in listed(tensors)]
        for host in hosts:
            reduction.check(host)

        def begin() -> None:
            for host in hosts:
                exchange.reduce(core, host, reduction, opts.rootRank)

        return self.run("reduce", begin, stage, listed(tensors), opts)

    def allgather(  # type: ignore[override]
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None
    ) -> Work:
        """Copies rank r's i-th input into the r-th tensor of the i-th list of outputs."""
        opts = options(c10d.AllgatherOptions, opts, timeout)
        outputs = [outputs] if isinstance(inputs, torch.Tensor) else outputs
        core, stage = self.core, Staging()
        sources = [stage.read(tensor) for tensor in listed(inputs)]
        targets = [[stage.write(tensor) for tensor in one] for one in outputs]
        for parts, source in zip(targets, sources):
            expect_parts("all_gather", parts, source, self.rank(), self.size())

        def begin() -> None:
            for target, source in zip(targets, sources):
                exchange.all_gather_list(core, target, source)

        return self.run("all_gather", begin, stage, outputs, opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Copies rank r's i-th input into the i-th tensor of the r-th list of outputs."""
        by_input = [[one[index] for one in outputs] for index in range(len(inputs))]
        return self.allgather(by_input, inputs, opts)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Concatenates every rank's input in the output."""
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
        core, reduction, stage = self.core, Reduction.of(opts.reduceOp), Staging()
        targets = [stage.write(tensor) for tensor in outputs]
        sources = [[stage.scratch(tensor) for tensor in one] for one in inputs]
        for target, parts in zip(targets, sources):
            reduction.check(target)
            expect_parts("reduce_scatter", parts, target, self.rank(), self.size())

        def begin() -> None:
            for target, parts in zip(targets, sources):
                exchange.reduce_scatter_list(core, target, parts, reduction)

        return self.run("reduce_scatter", begin, stage, outputs, opts)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Reduces the r-th part of every rank's input into rank r's output; inputs are unchanged."""
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
        """Copies rank r's input into the r-th output on the root."""
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
        """Concatenates every rank's input in the output on the root."""
        root = options(c10d.GatherOptions, opts).rootRank
        parts = output.view(self.size(), *input.shape).unbind() if self.rank() == root else []
        return self.gather([list(parts)], [input], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Copies the root's r-th input into rank r's output."""
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
        """Sends the r-th input to rank r, and receives rank r's tensor for this rank in the r-th output."""
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
        """Sends the r-th rows of the input to rank r, and receives rank r's rows for this rank;
        without sizes, parts are equal."""
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

    def barrier(  # type: ignore[override]
        self, opts: Any = None, timeout: Any = None
    ) -> Work:
        """Returns when every rank has arrived here."""
        opts = options(c10d.BarrierOptions, opts, timeout)
        return self.run("barrier", self.core.barrier, Staging(), [], opts, single=True)

    # The names of these before torch 2.13

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]
    alltoall_base = all_to_all_single  # type: ignore[assignment]
