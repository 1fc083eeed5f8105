"""The core, in Rust: groups of ranks and synchronisers of gradients, on plain addresses.

Tensors cross as address, number of elements and dtype ("f32", "f16", "bf16"). The caller keeps the
memory at an address alive and unchanged until the call is done. Blocking calls release the GIL and
end on Ctrl-C. A call with `done` returns at once; `done(error_or_None)` is called later from
another thread. After a PeerError the group is over: every later call fails with it.
"""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Literal, final

from thinwire.errors import Error, InvalidError, NoRankError, PeerError

__all__ = [
    "Averager",
    "Coordinator",
    "Cuda",
    "ElasticSteps",
    "Epoch",
    "EpochEntry",
    "Error",
    "Graph",
    "GraphBatch",
    "GraphFile",
    "GraphLoader",
    "Group",
    "InvalidError",
    "Membership",
    "NoRankError",
    "PeerError",
    "Policies",
    "RowServer",
    "RowSource",
    "Scatter",
    "Server",
    "ServerClient",
    "Sketch",
    "Store",
    "Synchronizer",
    "__version__",
    "check",
    "check_state",
    "close_all",
    "codec_name",
    "command",
    "decode_rows",
    "encode_rows",
    "fail_at_exit",
    "is_settled",
    "measure_codecs",
    "partner",
    "reshard",
    "settle",
    "settling_updates",
    "sockets",
    "xla_handlers",
]
__version__: str

_Done = Callable[[BaseException | None], object] | None
_Tensors = dict[str, tuple[list[int], bytes]]
# Number of a parameter or bucket, address, elements and, for f32 in the memory of a device, the device.
_Target = tuple[int, int, int] | tuple[int, int, int, "Cuda"]

def check(
    codec: str = "none",
    algorithm: str | None = None,
    bucket_bytes: int = 1 << 20,
    seed: int = 1,
    error_budget: float | None = None,
    feedback: str = "classic",
    momentum_correction: float | None = None,
    warmup_steps: int | None = ...,  # 0; None: as measured for the codec
    unchecked: bool = False,
    world: int | None = None,
) -> None:
    """Raises InvalidError for options that a Synchronizer would refuse, before ranks meet; with `world`,
    also for options that it would refuse for that number of ranks."""

def check_state(
    plan: str,
    codec: str = "none",
    feedback: str = "classic",
    momentum_correction: float | None = None,
    **_others: Any,
) -> None:
    """Raises InvalidError if the plan of a state is invalid, or comes from a training with a
    different codec, feedback or momentum correction; other options of `check` are ignored."""

def codec_name(codec: str) -> str:
    """Returns the canonical name of a codec, or of "auto" with codecs, as plans and states contain
    it. All synonyms have the same canonical name. InvalidError for a name that `check` refuses."""

def encode_rows(address: int, rows: int, columns: int, format: str) -> RowSource:
    """Encodes rows in a format ("f32", "f16", "int8"). The values at the address have the format's
    dtype, or f32 for "int8"."""

def decode_rows(rows: tuple[int, int], columns: int, format: str, out: tuple[int, int]) -> None:
    """Decodes rows, given as address and bytes, to f32 at an address that has room for them."""

def measure_codecs(codec: str, largest: int, device: Cuda | None = None) -> None:
    """Measures the codecs of "auto" on pieces of at most `largest` elements, once in a process, in the
    memory of a device or in host memory. Call it after joining the other ranks; otherwise, they
    wait for this one."""

def settling_updates(beta2: float) -> int:
    """Returns the number of updates between two variances of Adam that is_settled compares."""

def is_settled(before: float, now: float) -> bool:
    """Whether the sum of all variances has changed by less than 4 % from `before` to `now`."""

def partner(rank: int, world: int, seed: int, round: int) -> int | None:
    """The rank with which a rank averages in a round of pairs: all ranks draw the same perfect matching.
    If the number of ranks is odd, one rank has no partner and gets None."""

def close_all(groups: list[Group]) -> None:
    """Closes several groups at the same time; each waits a while for the other ranks."""

def command(words: list[str], arguments: list[str]) -> int:
    """Runs the command `thinwire` with these arguments, and returns its exit code. Ranks and
    servers are processes started by `words`: an interpreter and the program that it runs."""

def sockets() -> list[tuple[int, int]]:
    """Descriptor and inode of every socket that this process, or the one that it was forked from, has
    opened; some may be closed since."""

def settle() -> None:
    """Waits, at most five seconds, until callbacks that are under way have ended."""

def xla_handlers() -> list[tuple[str, str, Any]]:
    """The handlers of XLA's foreign function interface: names, platforms and capsules, as
    `jax.ffi.register_ffi_target` takes them.

    `thinwire_ready` takes the gradients of a bucket, and the attributes `key` and `bucket`;
    `thinwire_finish` takes `key` and writes the averages of all parameters. On CUDA both are f32 on the
    device of the synchronizer."""

def fail_at_exit() -> None:
    """Makes the exit status of this process 1, because a step has failed whose error the program
    has not read."""

def reshard(rank: int, world: int, saved: int, read: Callable[[int], _Tensors]) -> _Tensors:
    """Returns the state from which `rank` of `world` ranks continues after `saved` ranks have
    saved. The sums of residuals and momenta over ranks are preserved. `read` returns the tensors of
    an old rank; it is called for rank 0 and for every `world`-th rank from `rank` on. InvalidError
    if values differ that all ranks must have in common."""

@final
class Cuda:
    """An NVIDIA device on which gradients are encoded, in its primary context."""

    @staticmethod
    def open(ordinal: int, libraries: str) -> Cuda:
        """Opens a device, once in a process. Kernels are compiled by the NVRTC that is in
        `libraries`, the folder of a framework's libraries, or next to it. InvalidError if there is
        no driver, no NVRTC or no such device."""
    def allocate_by(self, allocate: Callable[[int], int], free: Callable[[int], object]) -> None:
        """Takes memory from a framework's allocator from now on, if none is set yet: `allocate`
        returns the address of a
        number of bytes for work on `stream`, or raises, and `free` takes an address back."""
    @property
    def stream(self) -> int:
        """Address of the stream of all work."""
    def after(self, stream: int) -> None:
        """Makes later work wait for the work queued so far on the stream at an address."""
    def synchronize(self) -> None:
        """Waits until all work is done."""
    @staticmethod
    def simulated(seed: int) -> Cuda | None:
        """A simulated device, in builds for tests; None without a C++ compiler."""
    def allocate(self, elements: int) -> int:
        """The address of new memory for f32, in builds for tests."""
    def new_stream(self) -> int:
        """The address of a new stream, as a framework has one, in builds for tests."""
    def queue_copy(self, source: int, target: int, elements: int, stream: int) -> None:
        """Queues a copy of f32 on such a stream, in builds for tests."""

@final
class Store:
    """A rendezvous server in this process, where ranks meet; it lives as long as the object."""

    def __new__(cls, host: str, port: int = 0, token: str = "") -> Store: ...
    @property
    def address(self) -> str:
        """The address at which ranks reach it: "host:port", or "host:port#key" on any port if
        THINWIRE_PORT is set.
        """

@final
class Coordinator:
    """The coordinator of an elastic job in this process; it lives as long as the object. With a
    `state` file it is the job's only coordinator, and continues from the file; without one, its
    successor asks the members for the state. With `servers`, which need a state file, it also decides
    where each row is kept."""

    def __new__(
        cls,
        address: str,
        token: str = "",
        min_ranks: int = 1,
        max_ranks: int = 4096,
        state: str | PathLike[str] | None = None,
        servers: bool = False,
    ) -> Coordinator: ...
    @property
    def address(self) -> str:
        """The address at which processes reach it: "host:port"."""
    def seat(self) -> list[tuple[str, str]]:
        """The environment variables of a new process of the job."""
    def resize(self, ranks: int) -> None:
        """Sets the desired number of ranks."""
    def stop(self) -> None:
        """Lets all processes leave after a step that all agree on."""

@final
class Membership:
    """One process of an elastic job, which reports to the coordinator while the framework computes.

    `facts`, pairs of name and value, must be equal on all its processes. If it is dropped without
    `complete`, it looks to the others like a process that was killed.
    """

    def __new__(
        cls,
        facts: list[tuple[str, str]],
        coordinator: str | None = None,
        token: str | None = None,
        encryption: str = "auto",
        connections: int | None = None,
        link: str | None = None,
        timeout_s: float = 60.0,
        heartbeat_timeout_s: float | None = None,
        port: int | None = None,
    ) -> Membership: ...
    @property
    def id(self) -> str:
        """The id of this process, as sixteen hexadecimal digits."""
    def next(self) -> Epoch | None:
        """Waits for the next epoch, after `halted`; None if this process has left, or the job is over."""
    def wants_end(self) -> bool:
        """Whether the epoch is to end after a step that all agree on."""
    def synced(self, steps: int) -> None:
        """Notes that the state was taken over, after this number of steps."""
    def applied(self, steps: int) -> None:
        """Notes that this number of steps was applied."""
    def halted(self) -> None:
        """Reports that the epoch has ended for this process, which applies no step until `next`
        returns."""
    def successors(self) -> list[tuple[int, int]]:
        """The ranks that leave when the epoch ends, each with the rank that takes over its
        residuals."""
    def leave(self) -> bool:
        """Asks to leave after a step that all agree on. Between epochs, when no other process depends
        on this one, it does nothing and returns False."""
    def complete(self) -> None:
        """Reports that all steps are done: the job is over for every process."""
    def tell(self, figures: str) -> None:
        """Sends figures for display: a JSON object of at most 512 bytes."""

@final
class Epoch:
    """Ranks of an elastic job that train together until membership changes; calls are collective."""

    @staticmethod
    def of(group: Group, number: int = 1, state_sources: int = 1) -> Epoch:
        """The ranks of a group as an epoch, over separate connections."""
    @property
    def number(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def state_sources(self) -> int:
        """Number of ranks, counted from rank 0, that have the newest state; 0 when a job begins."""
    def hand_over(self, state_sources: int, address: int, bytes: int) -> bytes:
        """Returns the bytes that the first `state_sources` ranks have in common, on all ranks. The
        addresses that other ranks pass are ignored."""
    def pass_on(self, source: int, target: int, mine: bytes) -> bytes:
        """Returns the bytes of rank `source`, on ranks `source` and `target`; only these two ranks
        call it."""
    def gather(self, mine: bytes) -> list[bytes]:
        """Returns the bytes of every rank, in rank order. Lengths may differ."""
    def abort(self, reason: str) -> None:
        """Ends the epoch on all its ranks."""
    def close(self) -> None:
        """Tells the other ranks that this rank leaves, once no synchronizer uses the epoch."""

@final
class EpochEntry:
    """The way in which a rank begins an epoch. All ranks of the epoch reach consistent
    decisions."""

    @property
    def hand_over(self) -> int | None:
        """Number of ranks, counted from rank 0, that send their state to all others; None if no
        rank lacks it."""
    @property
    def takes_over(self) -> bool:
        """Whether this rank takes over the state of the others."""
    @property
    def residuals(self) -> Literal["kept", "of lost step", "dropped"]:
        """The treatment of residuals. They stay unchanged; or they are taken from a lost step that
        another rank has applied; or they belong to a lost state, so that this rank begins without
        residuals, like a new one."""

@final
class ElasticSteps:
    """The steps of a rank of an elastic job, from epoch to epoch, and the decision about what
    follows each step.

    Only `applied` moves `done` within an epoch.
    """

    def __new__(cls) -> ElasticSteps: ...
    @property
    def done(self) -> int:
        """Steps in this rank's state."""
    @property
    def is_under_way(self) -> bool:
        """Whether a step has begun but was not applied."""
    @property
    def is_void(self) -> bool:
        """Whether a rank was lost: no step may be applied until the next epoch."""
    @property
    def due(self) -> Literal["step", "change", "repeat"]:
        """The next thing to do: the next step; the next epoch, after leavers have handed on their
        residuals; or the next epoch at once, which may repeat the step."""
    def begin(self, epoch: Epoch, done: int) -> EpochEntry:
        """Decides how this rank begins an epoch in which rank 0 has `done` steps. InvalidError if
        the others expect a state that this rank lacks, or would return to an older state than this
        rank's."""
    def synced(self, done: int) -> None:
        """Notes that this rank has the state after `done` steps."""
    def begin_step(self) -> None:
        """Notes that a step begins."""
    def agreed(self, ends: bool) -> None:
        """Notes whether any rank wants the epoch to end after this step."""
    def applied(self) -> None:
        """Notes that the step was applied."""
    def lost(self) -> None:
        """Records that a rank was lost; the step under way becomes void."""

@final
class Group:
    """Ranks that work together. Calls run in the order in which they are made; `send` and `recv`
    run concurrently with them. If ranks make different calls, all fail. `call` describes a call in
    addition to its number of bytes."""

    @staticmethod
    def join(
        rank: int | None = None,
        world: int | None = None,
        coordinator: str | None = None,
        token: str | None = None,
        encryption: str = "auto",
        connections: int | None = None,
        link: str | None = None,
        timeout_s: float = 60.0,
        launched: bool = False,
        heartbeat_timeout_s: float | None = None,
        watch: Callable[[], None] | None = None,
        port: int | None = None,
    ) -> Group:
        """Joins the other ranks. While it waits, `watch` is called about once a second; an
        exception that it
        raises ends the wait."""
    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_world(self) -> int: ...
    def store(self) -> str:
        """The address at which the ranks have met, as host:port."""
    def split(self, name: str) -> Group:
        """Returns a group of the same ranks over separate connections; all ranks call it. It ends
        together with this group, or by itself."""
    def all_reduce(
        self,
        address: int,
        elements: int,
        dtype: str,
        codec: str = "none",
        average: bool = False,
        done: _Done = None,
        call: str | None = None,
    ) -> None:
        """Sums over all ranks, in place."""
    def reduce_scatter(
        self,
        source: int,
        target: int,
        elements: int,
        dtype: str,
        codec: str = "none",
        average: bool = False,
        done: _Done = None,
        call: str | None = None,
    ) -> None:
        """Sums this rank's chunk of `source` over all ranks. `source` has `elements` elements per
        rank, and is overwritten."""
    def all_gather(
        self, source: int, target: int, bytes: int, done: _Done = None, call: str | None = None
    ) -> None:
        """Gathers `bytes` of every rank into `target`, in rank order."""
    def all_to_all(
        self,
        source: int,
        source_bytes: list[int],
        target: int,
        target_bytes: list[int],
        done: _Done = None,
        call: str | None = None,
    ) -> None:
        """Sends each rank its part of `source`, and receives this rank's part from each, in rank
        order."""
    def broadcast(
        self,
        address: int,
        bytes: int,
        root: int = 0,
        done: _Done = None,
        call: str | None = None,
    ) -> None:
        """Copies the bytes of `root` to all ranks."""
    def send(self, address: int, bytes: int, to: int, tag: int = 0, done: _Done = None) -> None:
        """Sends to one rank, which receives with the same tag; messages of one tag keep their order."""
    def recv(self, address: int, bytes: int, source: int, tag: int = 0, done: _Done = None) -> None:
        """Receives a message that one rank sends with the same tag."""
    def barrier(self, done: _Done = None) -> None:
        """Completes when every rank has called it."""
    def gatherer(self, call: str) -> int | None:
        """Returns a rank that has begun an `all_gather` with this description, if this rank has not
        begun it."""
    def expect(self, ranks: list[int]) -> None:
        """Raises PeerError if one of these ranks has left this group, or ended it."""
    def abort(self, reason: str) -> None:
        """Ends this group, its splits and everything made from them; every rank fails with `reason`."""
    def close(self) -> None:
        """Tells the other ranks that this group, its splits and everything made from them end here."""
    def counters(self) -> dict[str, int]:
        """Statistics of this group's collectives: bytes and frames, sent and received."""

@final
class Sketch:
    """Squared norm and linear sketch of one rank's gradients in a step: 33 numbers. Sketches of one step
    have the same random signs on all ranks: the mean of sketches is the sketch of the mean."""

    def __new__(cls, step: int) -> Sketch: ...
    @staticmethod
    def is_due(step: int) -> bool:
        """Whether gradients are sketched in a step."""
    def add(self, parameter: int, address: int, elements: int) -> None:
        """Adds the gradient of a parameter, which has a unique number: f32 at an address of host
        memory."""
    def row(self) -> list[float]:
        """The squared norm, then 32 counters."""

@final
class Policies:
    """Policies, given by their texts, and the gradient noise that they use."""

    def __new__(cls, policies: list[str]) -> Policies: ...
    def needs_ranks(self) -> bool:
        """Whether any policy has no effect unless the number of ranks can change."""
    def take(self, sketches: list[list[float]], rows: list[int]) -> None:
        """Records a step: the sketch of each rank, and its rows of the batch."""
    def noise(self) -> tuple[float, float] | None:
        """Squared norm of the gradient, and variance of a single row's gradient, once they are known."""
    def ask(
        self,
        step: int,
        ranks: int,
        ranks_asked: int,
        ranks_allowed: tuple[int, int] | None,
        batch: int,
        first_batch: int,
        rows_left: int,
        step_s: float,
        wait_s: float,
        elapsed_s: float,
    ) -> list[dict[str, Any]]:
        """The requests of policies after a step: dicts with "batch", "rate", "ranks" and "reason"."""

@final
class Averager:
    """Exchanges the parameters of ranks that train their own copies of a model, according to a
    mode.

    `parameters` are (name, shape, dtype, bucket), where dtype is "f32" and bucket is ignored;
    `addresses`, here and in all methods, are the addresses of the parameters' f32 values in host
    memory, one for each parameter. All ranks must begin with the same values. All ranks create it
    together.
    """

    def __new__(
        cls,
        group: Group,
        parameters: list[tuple[str, list[int], str, int]],
        addresses: list[int],
        mode: str,
        codec: str = "none",
        bucket_bytes: int = 1 << 20,
        seed: int = 1,
        algorithm: str | None = None,
        feedback: str = "classic",
        unchecked: bool = False,
    ) -> Averager: ...
    def is_due(self) -> bool:
        """Whether the end of the next step reads or changes parameters; if not, `step` accepts the
        addresses of any values."""
    def steps(self) -> int:
        """Steps so far."""
    def step(self, addresses: list[int]) -> dict[str, float]:
        """Ends a step, in which this rank has changed its parameters: begins and ends the rounds that are
        due. Returns the numbers of rounds that have "begun" and "ended" and that were "skipped", with
        "wait_s" and "sent_bytes"."""
    def settle(self, addresses: list[int]) -> dict[str, float]:
        """Ends all rounds under way early; all ranks together."""
    def finish(self, addresses: list[int]) -> dict[str, float]:
        """Gives all ranks the same parameters by a last round; all ranks together."""
    def state(self) -> tuple[str, _Tensors]:
        """Progress and tensors for a restart, in addition to the parameters of this rank; call
        after `settle`."""
    def load(self, progress: str, tensors: _Tensors, addresses: list[int]) -> None:
        """Continues from a state before the first step; all ranks together."""
    def abort(self, reason: str) -> None:
        """Makes all ranks fail with `reason`."""

@final
class Synchronizer:
    """Averages the gradients of a model over all ranks, with error feedback and overlap.

    `parameters` are (name, shape, dtype, bucket) in the order in which gradients become ready, at
    least one, each with a unique name; those of one bucket become ready together. `device` is the
    device of the gradients, on which "auto" measures codecs. `peers` are the ranks that exchange
    these parameters with this rank; an empty list means all ranks. `beside` are ranks with other
    peers: a step takes effect on all of them or on none. `named` are the names that patterns of
    codecs may match; an empty list means the names of `parameters`. All ranks create it together.
    """

    def __new__(
        cls,
        group: Group | Epoch,
        parameters: list[tuple[str, list[int], str, int]],
        codec: str = "none",
        bucket_bytes: int = 1 << 20,
        seed: int = 1,
        algorithm: str | None = None,
        error_budget: float | None = None,
        feedback: str = "classic",
        momentum_correction: float | None = None,
        warmup_steps: int | None = ...,  # 0; None: as measured for the codec
        unchecked: bool = False,
        device: Cuda | None = None,
        peers: Sequence[int] = ...,
        beside: Sequence[int] = ...,
        named: Sequence[str] = ...,
    ) -> Synchronizer: ...
    @property
    def key(self) -> int:
        """The number by which a framework's operators find this synchronizer."""
    def buckets(self) -> list[list[int]]:
        """The parameters of each bucket, in the order in which buckets become ready."""
    def relayout(self, parameters: list[tuple[str, list[int], str, int]]) -> None:
        """Changes the order of the parameters or their buckets; all ranks together."""
    def reform(self, epoch: Epoch, applied: bool = False) -> None:
        """Continues among the ranks of an epoch. All ranks of the epoch call it together, except
        new ranks, which create a synchronizer. An unfinished step has no effect, unless another
        rank has `applied` it."""
    def owed(self) -> bytes:
        """The residuals and momenta of this rank, for `take_on` of another rank."""
    def take_on(self, owed: bytes) -> None:
        """Adds, between steps, the residuals and momenta of a rank that leaves."""
    def release(self) -> None:
        """Disconnects from the other ranks between steps, until `reform`."""
    def set_share(self, share: float) -> None:
        """Sets the part of the global batch that this rank computes, from the next step on."""
    def begin(self, step: int | None = None) -> None:
        """Begins a step, with the next number unless `step` is given, which must be the same on all
        ranks."""
    def ready(
        self, parameter: int, address: int, elements: int, device: Cuda | None = None
    ) -> None:
        """Copies a gradient; its bucket is sent when all its gradients are ready. With a `device`,
        the address is of f32 in the device's memory, and the copy is queued on the device's
        stream."""
    def ready_bucket(
        self, bucket: int, address: int, elements: int, device: Cuda | None = None
    ) -> None:
        """Takes all gradients of a bucket, concatenated in one flat tensor."""
    def absent(self, parameters: list[int]) -> None:
        """Declares that this rank has no gradients of these parameters in this step, before any values are
        given for them. A parameter that is absent on all ranks keeps residual, momentum and factors."""
    def keeps(self) -> bool:
        """Whether parameters have state that is kept from step to step: residuals, momenta,
        factors."""
    def fault(self) -> str | None:
        """A description of the gradient because of which the last step must be skipped, as far as this
        rank knows."""
    def staged(self) -> str | None:
        """A line about work that the device cannot do, so that gradients were copied to host memory
        for it in the last step."""
    def finish(self) -> bool:
        """Waits for all averages. Returns False if a gradient of some rank was not finite: the step
        must be skipped, and no residual has changed."""
    def write(
        self, parameter: int, address: int, elements: int, device: Cuda | None = None
    ) -> None:
        """Writes an average after `finish`; NaN after a step that must be skipped."""
    def finish_into(self, targets: Sequence[_Target], done: Callable[..., object]) -> None:
        """Finishes and writes each parameter, then calls `done(None, averaged)` or `done(error)` from
        another thread. Writes to a device are queued on its stream."""
    def finish_buckets(self, targets: Sequence[_Target], done: Callable[..., object]) -> None:
        """Does what `finish_into` does, for flat tensors, each with the number of a bucket."""
    def exchange(self, sources: list[int], targets: list[int]) -> bool:
        """Makes a whole step: reads gradients from `sources` and writes averages to `targets`, in
        the parameters' order."""
    def rescale(self, previous_rate: float, rate: float) -> None:
        """Adapts the residuals to a changed learning rate, because they come from gradients under
        the previous one."""
    def failure(self) -> Error | None:
        """The reason why the first operator of a framework failed, if one did."""
    def plan(self) -> str:
        """Codec, algorithm and partitions of every bucket, as JSON; on rank 0 also the `line` of `auto`."""
    def record(self) -> str:
        """Breakdown of the last step's time, and on rank 0 the last `planning` of `auto`, as
        JSON."""
    def live(self, steps: int, step_s: float, samples_per_s: float) -> str:
        """The figures that `thinwire top` shows for this rank after this number of steps, as JSON."""
    def state(self) -> tuple[str, _Tensors]:
        """The plan and all residuals and factors, as bytes of f32."""
    def load(self, plan: str, tensors: _Tensors) -> None:
        """Loads a state; a collective call between steps. A state of another model, codec, feedback,
        momentum correction or step is refused on all ranks before anything has changed."""
    def shared_state(self) -> tuple[str, _Tensors]:
        """The part of the state that is equal on all ranks."""
    def load_shared(self, plan: str, tensors: _Tensors) -> None:
        """Loads what `shared_state` returned on another rank, and keeps this rank's residuals."""
    def state_bytes(self) -> int:
        """Bytes of memory that the exchange uses in addition to one copy of the gradients."""
    def abort(self, reason: str) -> None:
        """Ends the synchronizer on all ranks; their errors give `reason`."""

@final
class Scatter:
    """Compressed reduce-scatter and all-gather for sharded parameters. All ranks create it
    together; calls run in the order in which they are made."""

    def __new__(
        cls, group: Group, codec: str = "none", seed: int = 1, unchecked: bool = False
    ) -> Scatter: ...
    def reduce_scatter(
        self,
        parts: list[tuple[int, int]],
        source: int,
        target: int,
        dtype: str,
        average: bool = False,
        done: _Done = None,
        device: Cuda | None = None,
    ) -> None:
        """Sums this rank's chunk of `source`, one chunk per rank, into `target`. A chunk has `parts`: the
        key of each parameter, whose residual is kept, and its number of elements per rank. NaN if
        any rank had a value that is not finite. With a `device`, both are f32 in its memory; values
        that are not compressed are sent as `dtype`."""
    @property
    def was_skipped(self) -> bool:
        """Whether any rank had a value that is not finite in the last reduce-scatter."""
    def all_gather(
        self,
        key: int,
        source: int,
        target: int,
        elements: int,
        dtype: str,
        codec: str = "none",
        done: _Done = None,
    ) -> None:
        """Gathers `elements` elements of every rank, rounded by `codec`. All ranks get the same
        bits."""
    def state(self) -> dict[int, tuple[int, bytes]]:
        """For each key: the number of its exchanges, and its residual, rank by rank, as bytes of
        f32."""
    def load(self, places: dict[int, tuple[int, bytes]]) -> None:
        """Continues from what `state` returned, at these keys."""
    def abort(self, reason: str) -> None:
        """Ends the exchange on all ranks; their errors give `reason`."""

@final
class Graph:
    """In-neighbours of every vertex."""

    def __new__(cls, offsets: tuple[int, int], neighbors: tuple[int, int]) -> Graph:
        """Copies compressed sparse columns: address and length of offsets and of neighbours, i64."""
    @property
    def vertices(self) -> int:
        """Number of vertices."""
    @property
    def edges(self) -> int:
        """Number of edges."""
    def write_columns(self, offsets: int, neighbors: int) -> None:
        """Writes the compressed sparse columns to two addresses, as i64: offsets (one more than
        there are vertices) and neighbours."""

@final
class GraphFile:
    """A graph in a file of `thinwire graph`, mapped into memory."""

    def __new__(cls, path: str | PathLike[str]) -> GraphFile: ...
    @staticmethod
    def write(
        path: str | PathLike[str],
        graph: Graph,
        features: tuple[int, int, str] | None = None,
        labels: int | None = None,
        split: int | None = None,
        bounds: list[int] | None = None,
        weights: int | None = None,
        types: int | None = None,
        ids: list[int] | list[str] | None = None,
    ) -> None:
        """Writes a file. Features are address, columns and format of the rows: "f32", "f16", or "int8",
        which is encoded from f32; labels are the address of i64, below 0 for none; the split is the address
        of bytes: 0 none, 1 training, 2 validation, 3 test. `bounds` are the first vertices of parts, and
        the number of vertices; weights are the address of f32 by positions of edges, and types that of
        i64. Ids are one int64 or string per vertex."""
    def graph(self) -> Graph:
        """The topology, which shares the file's memory."""
    @property
    def format(self) -> tuple[str, int] | None:
        """Format of the features and numbers per row, if there are features."""
    def rows(self, start: int, end: int) -> RowSource:
        """The features of vertices `start..end`."""
    @property
    def classes(self) -> int | None:
        """Number of classes, if there are labels."""
    def write_labels(self, address: int) -> None:
        """Writes the labels as i64; -1 where a vertex has none."""
    @property
    def extras(self) -> tuple[bool, bool]:
        """Whether edges have weights, and whether vertices have types."""
    def write_weights(self, address: int) -> None:
        """Writes the weights as f32, by positions of edges."""
    def write_types(self, address: int) -> None:
        """Writes the type of every vertex as i64."""
    def write_split(self, address: int) -> None:
        """Writes the use of every vertex as bytes: 0 for none, 1 training, 2 validation, 3 test."""
    def ids(self) -> list[int] | list[str] | None:
        """The ids of vertices in the graph's source, if the file has them."""
    def write_origins(self, address: int) -> None:
        """Writes, as i64, the number that every vertex had before the graph was cut into parts, if
        it was."""
    def verify(self) -> None:
        """Compares the whole file with its checksums. Raises InvalidError if they differ."""
    @property
    def bounds(self) -> list[int]:
        """First vertices of the parts, and the number of vertices; empty if there are none."""

@final
class GraphLoader:
    """Mini-batches of a graph in the order of their positions, loaded ahead by its own threads."""

    def __new__(
        cls,
        graph: Graph,
        rows: RowSource,
        seeds: tuple[int, int],
        options: str,
        weights: int | None = None,
    ) -> GraphLoader:
        """Starts the threads. `rows` are the features of all vertices; `seeds` are address and number of
        i64; `options` are JSON; `weights` are the address of f32, one per edge, by positions of edges."""
    @property
    def steps(self) -> int:
        """Number of batches in a pass."""
    def together(self, step: int) -> int:
        """Number of seeds of all ranks in a step of any pass."""
    def next(self) -> GraphBatch:
        """Waits for the next batch."""
    def hits(self) -> tuple[int, int]:
        """Numbers of rows found in the cache and not found in it."""

@final
class RowSource:
    """Rows of equal width, numbered from 0."""

    @staticmethod
    def of_memory(address: int, rows: int, width: int, owner: object) -> RowSource:
        """Rows at an address, `width` bytes each, which `owner` keeps alive."""
    @staticmethod
    def of_parts(parts: list[RowSource | str], token: str, timeout_s: float) -> RowSource:
        """The rows of consecutive parts, each the rows of this process, or host:port of a `RowServer`."""
    def read(self, numbers: tuple[int, int], out: int) -> None:
        """Writes rows to an address, in the order of their numbers, which are given as address and
        count of i64."""
    @property
    def width(self) -> int:
        """Bytes of a row."""
    @property
    def rows(self) -> int:
        """Number of rows."""
    @property
    def fetched(self) -> int:
        """Number of rows that other processes have sent."""

@final
class RowServer:
    """Thread that sends rows of this process to other processes on request, until it is closed or
    dropped."""

    def __new__(cls, rows: RowSource, first: int, address: str, token: str) -> RowServer:
        """Serves `rows`, the first of which has the number `first` among the rows of all parts, at
        the host:port at which others reach it. Listens on all interfaces, unless the host is
        loopback."""
    @property
    def address(self) -> str:
        """Address at which others reach it, host:port."""
    def close(self) -> None:
        """Ends the thread."""

@final
class GraphBatch:
    """A mini-batch. Its memory is reused when the object is gone."""

    @property
    def position(self) -> tuple[int, int]:
        """Pass, and step in the pass."""
    @property
    def seeds(self) -> int:
        """Number of seeds, the first of the vertices."""
    @property
    def vertices(self) -> int:
        """Number of vertices."""
    @property
    def hops(self) -> list[tuple[int, int]]:
        """Numbers of sources and of edges of every hop, beginning with the seeds' hop."""
    @property
    def rows(self) -> tuple[int, int]:
        """Address and bytes of the feature rows."""
    def write_vertices(self, address: int) -> None:
        """Writes the vertices as i64."""
    def write_edges(self, sources: int, destinations: int) -> None:
        """Writes the sources and destinations of all hops' edges as i64: numbers in the batch."""
    def write_positions(self, address: int) -> None:
        """Writes the positions of all hops' edges in the graph as i64."""

@final
class Server:
    """A server of a job in this process: it keeps the rows that the coordinator assigns to it, as
    long as the object lives. If it is dropped without `leave`, it looks to the others like a
    process that was killed."""

    def __new__(
        cls,
        coordinator: str,
        token: str = "",
        listen: str = "127.0.0.1:0",
        timeout_s: float = 60.0,
        snapshots: str | PathLike[str] | None = None,
        restore: str | PathLike[str] | None = None,
    ) -> Server:
        """`snapshots` is a folder that all servers share, or `s3://BUCKET/PREFIX`. `restore` has
        the files with which the job begins, as in `ServerClient`."""
    @property
    def address(self) -> str:
        """The address at which other processes reach it: "host:port"."""
    def figures(self) -> str:
        """Figures for display, as JSON, at most a second old."""
    def refusal(self) -> str | None:
        """The reason why the coordinator refuses this server, if it does. A refused server serves
        no worker."""
    def leave(self) -> None:
        """Leaves the job, and returns when the others continue without this server."""

@final
class ServerClient:
    """This process as a worker of a job with servers. Rows are numbers of eight bytes, values f32.

    `definition` is the JSON of all tables, `consistency`, `shards`, `backups` and `servers`.
    `definition` and `facts` must be equal on all workers. If it is dropped without `leave`, it
    looks to the others like a process that was killed.
    """

    def __new__(
        cls,
        definition: str,
        facts: list[tuple[str, str]] = ...,
        coordinator: str | None = None,
        token: str | None = None,
        timeout_s: float = 60.0,
        restore: str | PathLike[str] | None = None,
    ) -> ServerClient:
        """`restore` is a snapshot, a folder of snapshots, or a safetensors file, with which the job begins;
        the same on all of its workers and servers."""
    @property
    def id(self) -> str:
        """The id of this process, as sixteen hexadecimal digits."""
    @property
    def epoch(self) -> int:
        """The number of the workers' epoch, which changes when a worker joins or leaves."""
    @property
    def rank(self) -> int:
        """This worker's index in the epoch."""
    @property
    def world(self) -> int:
        """Number of workers in the epoch."""
    @property
    def pushing(self) -> int:
        """Number of workers that push, this one included: all workers of the epoch except those
        that only read rows. Before the first step of the job, all workers are expected to push."""
    @property
    def pushes(self) -> int:
        """Number of pushes so far."""
    def begin_push(self, gradients: list[tuple[int, int, int, int, int]]) -> None:
        """Begins a push, once the previous push is on all replicas. Each gradient is given by the
        number of its table, address and number of rows, and address and number of values; all of
        these are copied. The list may be empty, because servers count pushes as steps."""
    def finish_push(self) -> None:
        """Waits until the push is on all replicas, and so survives failures."""
    def pull(self, groups: list[tuple[int, int, int]], address: int, elements: int) -> None:
        """Reads rows in any order, each group given as the number of a table, address and number of
        rows, into
        `elements` values at `address`. The rows contain all pushes of this worker."""
    def cache(self, table: int, bytes_max: int, staleness: int) -> None:
        """Caches rows of a table in at most `bytes_max` bytes. A cached row is used until this
        worker has made more than `staleness` pushes after requesting it."""
    def hits(self, table: int) -> str | None:
        """Counters of a table's cache, as JSON; empty without a cache."""
    def snapshot(self) -> str:
        """Takes a snapshot of the job, with all pushes of this worker; returns the name of its folder."""
    def tell(self, steps: int, step_s: float) -> None:
        """Reports the figures that `thinwire top` shows for this worker after this number of steps
        of `step_s` seconds each."""
    def leave(self) -> None:
        """Leaves the job, and returns when the others continue without this worker."""
