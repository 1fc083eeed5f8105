#!/usr/bin/env bash
# Measurements behind README.md and docs/results.md: Thinwire, its peers and the physical limit,
# alternately, in one run, on one machine. bench/README.md lists the command of each.
#
#   bench/run.sh collective [--networks LIST] [--worlds LIST] [--sizes LIST] [--rounds N] [--algorithms LIST] [--json FILE]
#   bench/run.sh training [--networks LIST] [--worlds LIST] [--codecs LIST] [--rounds N] [--json FILE] [FLAG VALUE ...]
#   bench/run.sh ddp [--networks LIST] [--worlds LIST] [--hosts N] [--models LIST] [--methods LIST] [--rounds N] [--json FILE] [FLAG VALUE ...]
#   bench/run.sh mindspore
#   bench/run.sh jax [--parts overlap,training] [--networks LIST] [--frameworks LIST] [--data FILE] [--json FILE] [FLAG VALUE ...]
#   bench/run.sh plans [--networks LIST] [--steps N] [--rounds N] [--batch N] [--model NAME] [--shares yes|no] [--data FILE] [--json FILE]
#   bench/run.sh accuracy [--methods LIST|all] [--world N] [--network NETWORK] [--json FILE] [FLAG VALUE ...]
#   bench/run.sh time-to-loss [--networks LIST] [--world N] [--models LIST] [--methods LIST] [--json FILE] [FLAG VALUE ...]
#   bench/run.sh modes --slow [--methods A B] [--runs N] [--json FILE] [FLAG VALUE ...]
#   bench/run.sh modes [--parts curve,time,whole] [--networks LIST] [--models LIST] [--methods 'A B'] [--json FILE] [FLAG VALUE ...]
#   bench/run.sh sync|hosts|change [--json FILE] [FLAG VALUE ...]
#   bench/run.sh choice [--models LIST] [--networks LIST] [--cores shared,each] [--json FILE] [FLAG VALUE ...]
#   bench/run.sh churn [--fault NAME] [--rounds N] [--world N] [--every SECONDS] -- [thinwire train's flags]
#   bench/run.sh churn --own [--finish] [...] -- COMMAND
#   bench/run.sh failures [--methods LIST] [--failures LIST] [--rounds N] [--world N] [--rank N] [--json FILE]
#   bench/run.sh resize [--network NETWORK] [--rounds N] [--pause SECONDS] [-- thinwire train's flags]
#   bench/run.sh server [--networks LIST] [--backups LIST] [--formats LIST] [--rounds N] [--json FILE]
#   bench/run.sh distortion [--models LIST] [--steps LIST] [--data FILE]
#   bench/run.sh codec | codecs | link
#   bench/run.sh readme --data FILE [--digits FOLDER] [--graph FILE] [--only ROWS] [--json FOLDER]
#
# Peers that are not installed are skipped with a line that says so. PYTHON names the interpreter
# that has torch (python3 by default); THINWIRE the binary (target/release/thinwire by default),
# and THINWIRE_BENCH that of bench/native (target/release/thinwire-bench by default).

set -u -o pipefail
BENCH=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(dirname "$BENCH")
# shellcheck source=network.sh
source "$BENCH/network.sh"
# shellcheck source=peers/mpi.sh
source "$BENCH/peers/mpi.sh"
# shellcheck source=training.sh
source "$BENCH/training.sh"
# shellcheck source=sync.sh
source "$BENCH/sync.sh"
# shellcheck source=resize.sh
source "$BENCH/resize.sh"
# shellcheck source=server.sh
source "$BENCH/server.sh"
# shellcheck source=python/ddp.sh
source "$BENCH/python/ddp.sh"
# shellcheck source=python/accuracy.sh
source "$BENCH/python/accuracy.sh"
# shellcheck source=python/time_to_loss.sh
source "$BENCH/python/time_to_loss.sh"
# shellcheck source=python/modes.sh
source "$BENCH/python/modes.sh"
# shellcheck source=readme.sh
source "$BENCH/readme.sh"
# shellcheck source=python/jax.sh
source "$BENCH/python/jax.sh"

PYTHON=${PYTHON:-python3}
THINWIRE=${THINWIRE:-$ROOT/target/release/thinwire}
THINWIRE_BENCH=${THINWIRE_BENCH:-$ROOT/target/release/thinwire-bench}
MIB=1048576
SCRATCH=$(mktemp -d)
trap 'network_down; rm -rf "$SCRATCH"' EXIT
trap 'exit 130' INT TERM
export TORCH_CPP_LOG_LEVEL=ERROR

say() { echo "$*" >&2; }
fail() { say "error: $*"; exit 2; }

# Puts flags, of which each has a value, into the caller's variables of their names, with _ for -, and all others into
# its `rest` if the names end with `...`.
take_flags() { # 'NAME ...' [FLAG VALUE ...]
    local known=" $1 " name
    shift
    while [ $# -gt 0 ]; do
        name=${1#--}
        case "$known$1" in
            *" $name "*--*) printf -v "${name//-/_}" %s "$2" ;;
            *" ... "*) rest+=("$1" "$2") ;;
            *) fail "unknown flag '$1'" ;;
        esac
        shift 2
    done
}

need_binary() { [ -x "$THINWIRE" ] || fail "no $THINWIRE, run cargo build --release"; }

# The measurements of bench/native. Their ranks keep what they free, as those of `thinwire train` do.
need_bench() {
    [ -x "$THINWIRE_BENCH" ] || fail "no $THINWIRE_BENCH, run cargo build --release -p thinwire-bench"
    export GLIBC_TUNABLES=glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=18446744073709551615
}

# Whether PYTHON has some packages, none of which is imported: that takes seconds.
has() { # PACKAGE ...
    "$PYTHON" -c 'import sys; from importlib.util import find_spec; sys.exit(None in map(find_spec, sys.argv[1:]))' "$@" 2>/dev/null
}

need_plugin() { has torch thinwire || fail "$PYTHON has no torch or no thinwire (set PYTHON)"; }

machine() {
    say "machine: $(nproc) cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
    say "load before: $(cut -d ' ' -f 1-3 /proc/loadavg); $(date -u +%F)"
}

# Which of the peers this machine has, in the order in which they alternate.
find_peers() {
    PEERS=()
    if [ -x "$THINWIRE" ]; then PEERS+=(thinwire); else say "skipped thinwire: no $THINWIRE, run cargo build --release"; fi
    if "$PYTHON" -c 'import torch.distributed as d; assert d.is_gloo_available()' 2>/dev/null; then
        PEERS+=(gloo)
    else
        say "skipped gloo: $PYTHON has no torch with gloo (set PYTHON)"
    fi
    if mpi_available && mpi_build "$SCRATCH"; then PEERS+=(mpi-default mpi-ring); else say "skipped mpi: no mpicc and mpirun"; fi
}

# Within one host, both ways of ours and of Open MPI's: through shared memory, and over TCP.
peers_of() { # NETWORK
    local peer
    for peer in "${PEERS[@]}"; do
        echo "$peer"
        [ "$1" = loopback ] || continue
        case "$peer" in
            thinwire) echo thinwire-tcp ;;
            mpi-default) echo mpi-shm ;;
        esac
    done
}

# JSON lines of one peer on the network that is up.
measure() { # PEER BYTES ...
    local peer=$1 sizes
    shift
    sizes=$(IFS=,; echo "$*")
    case "$peer" in
        thinwire) network_ranks "$THINWIRE" bench collective --sizes "$sizes" "${THINWIRE_FLAGS[@]}" --json ;;
        thinwire-tcp)
            THINWIRE_SHARED_MEMORY=never network_ranks "$THINWIRE" bench collective --sizes "$sizes" "${THINWIRE_FLAGS[@]}" --json |
                sed 's/"peer":"thinwire/&-tcp/'
            ;;
        gloo) network_ranks "$PYTHON" "$BENCH/peers/gloo.py" "$@" ;;
        mpi-*) mpi_all_reduce "$SCRATCH" "${peer#mpi-}" "$@" ;;
    esac
}

# The sizes in MiB that a network carries in reasonable time.
sizes_of() {
    case "$1" in
        100mbit) echo 1,4,25 ;;
        1gbit) echo 1,4,25,100 ;;
        *) echo 1,4,25,100,400 ;;
    esac
}

collective() {
    local networks=loopback,100mbit,1gbit worlds=2,4 sizes='' rounds=3 json=$SCRATCH/lines.json algorithms=''
    take_flags 'networks worlds sizes rounds algorithms json' "$@"
    local THINWIRE_FLAGS=(${algorithms:+--algorithms "$algorithms"})
    find_peers
    machine
    : >"$json"
    local network world round peer bytes
    for network in ${networks//,/ }; do
        for world in ${worlds//,/ }; do
            bytes=()
            for size in $(tr , ' ' <<<"${sizes:-$(sizes_of "$network")}"); do bytes+=($((size * MIB))); done
            network_up "$world" "$network" || { say "skipped network $network"; network_down; continue; }
            for ((round = 1; round <= rounds; round++)); do
                say "$network, $world ranks, round $round of $rounds"
                network_ranks "$PYTHON" "$BENCH/peers/tcp.py" >>"$json" || say "failed: tcp probe"
                for peer in $(peers_of "$network"); do
                    measure "$peer" "${bytes[@]}" 2>"$SCRATCH/errors" >>"$json" ||
                        say "failed: $peer: $(tail -n 3 "$SCRATCH/errors")"
                done
            done
            network_down
        done
    done
    "$PYTHON" "$BENCH/table.py" <"$json"
}

# Faults of an elastic training.
churn() { # [churn.py's flags] -- [thinwire train's flags]
    local where=()
    need_binary
    machine
    case " $* " in
        *" --fault cut "* | *" --fault pair "*)
            # A host for each rank, and one for the coordinator.
            network_up 5 1gbit || fail "cut links need root"
            where=(--namespaces "$NETWORK_ID")
            ;;
    esac
    "$PYTHON" "$BENCH/churn.py" --thinwire "$THINWIRE" "${where[@]}" "$@"
    network_down
}

# Every codec, the five that are written as text too, beside the same in PyTorch.
codecs() {
    machine
    local text list=none,f16,bf16,int8,int4,int3,int2,onebit,vote,terngrad,qsgd:3,qsgd:4,natural,e4m3,e5m2,dynamic8
    list+=,lossless,lossless:bf16,ecsq:0.35,ecsq:1,tbq:0.5,topk:0.01,graddrop:0.01,dgc:0.01,randomk:0.01,dct:32,powersgd:4
    for text in onebit terngrad tbq:tau=0.5 graddrop:ratio=0.01 dgc:ratio=0.01; do
        list+=,$ROOT/examples/codecs/${text%%:*}.codec
        case "$text" in *:*) list+=:${text#*:} ;; esac
    done
    "$THINWIRE" bench codec --codecs "$list" --size 16 --json | "$PYTHON" "$BENCH/python/codecs.py" "$@"
}

# Bits and errors of every codec but that of low rank, on gradients of three models, beside the best uniform quantiser.
distortion() {
    need_bench
    machine
    "$PYTHON" "$BENCH/python/gradients.py" "$SCRATCH" "$@" || fail "no gradients were recorded (set PYTHON)"
    local codecs=f16,bf16,lossless,lossless:bf16,int8,int4,int3,int2,onebit,vote,terngrad,qsgd:4,natural,e4m3,e5m2
    codecs+=,dynamic8,ecsq:0.25,ecsq:0.35,ecsq:0.5,ecsq:0.7,ecsq:1,ecsq:1.4
    codecs+=,tbq:0.5,topk:0.01,graddrop:0.01,dgc:0.01,randomk:0.01,dct:32
    (cd "$SCRATCH" && "$THINWIRE_BENCH" distortion --codecs "$codecs" -- *.f32) | "$PYTHON" "$BENCH/sync.py" --distortion
}

[ $# -ge 1 ] || fail "usage: bench/run.sh collective|codec|link|training|sync|choice|hosts|change|churn|failures|resize|server|codecs|distortion|ddp|accuracy|time-to-loss|modes|jax|mindspore|readme"
command=$1
shift
case "$command" in
    collective) collective "$@" ;;
    codec) machine && "$THINWIRE" bench codec "$@" ;;
    # Beside a plain TCP stream, and so over TCP.
    link) machine && THINWIRE_SHARED_MEMORY=never "$THINWIRE" bench link "$@" ;;
    training) training "$@" ;;
    plans) machine && THINWIRE=$THINWIRE PYTHON=$PYTHON bash "$BENCH/plans.sh" "$@" ;;
    sync) sync_bench "$@" ;;
    choice | hosts | change) "$command" "$@" ;;
    ddp) ddp "$@" ;;
    codecs) codecs "$@" ;;
    churn | resize | server | readme) "$command" "$@" ;;
    distortion) distortion "$@" ;;
    failures) need_plugin && machine && "$PYTHON" "$BENCH/failures.py" "$@" ;;
    accuracy) accuracy "$@" ;;
    time-to-loss) time_to_loss "$@" ;;
    modes) modes "$@" ;;
    jax) jax "$@" ;;
    mindspore) machine && "$PYTHON" "$BENCH/python/mindspore_allreduce.py" "$@" ;;
    *) fail "unknown measurement '$command', expected collective, codec, link, training, sync, choice, hosts, change, churn, failures, resize, server, codecs, distortion, ddp, accuracy, time-to-loss, modes, jax, mindspore or readme" ;;
esac
