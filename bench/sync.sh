#!/usr/bin/env bash
# What an iteration waits for its gradients: sourced by run.sh.
#
#   sync      the stages of the ablation, and what others have built, in one run
#   choice    auto beside every fixed choice of codec and algorithm
#   hosts     auto beside sums by flat and by hierarchical algorithms, on two hosts of two ranks each
#   change    auto on a link that is cut to a quarter in mid-run, and recovers

sync_bench() { # [--networks LIST] [--worlds LIST] [--models LIST] [--json FILE] [thinwire bench sync's flags]
    local networks=1gbit,100mbit worlds=4 models=vgg19,bert-base json=$SCRATCH/sync.json flags=()
    while [ $# -gt 0 ]; do
        case "$1" in
            --networks) networks=$2 ;;
            --worlds) worlds=$2 ;;
            --models) models=$2 ;;
            --json) json=$2 ;;
            *) flags+=("$1" "$2") ;;
        esac
        shift 2
    done
    [ -x "$THINWIRE" ] || fail "no $THINWIRE, run cargo build --release"
    machine
    : >"$json"
    local network world model
    for network in ${networks//,/ }; do
        for world in ${worlds//,/ }; do
            network_up "$world" "$network" || { say "skipped network $network"; network_down; continue; }
            for model in ${models//,/ }; do
                say "$network, $world ranks, $model"
                NETWORK_SECONDS_MAX=3600 network_ranks "$THINWIRE" bench sync --json --timeout 600 \
                    --model "$model" "${flags[@]}" 2>"$SCRATCH/errors" >>"$json" ||
                    say "failed: $(tail -n 3 "$SCRATCH/errors")"
            done
            network_down
        done
    done
    "$PYTHON" "$BENCH/sync.py" <"$json"
}

choice() {
    local methods=auto codec algorithm
    for codec in none bf16; do
        for algorithm in ring halving two-shot gather; do methods+=,$codec/$algorithm; done
    done
    for codec in int8 int4 int3 int2; do
        for algorithm in two-shot gather; do methods+=,$codec/$algorithm; done
    done
    sync_bench --networks 20mbit,100mbit,1gbit,unshaped --models gpt --compute 150 --methods "$methods,auto" "$@"
}

hosts() {
    local codec methods=auto
    for codec in none int8; do methods+=,$codec/two-shot,$codec/hierarchical:2:two-shot; done
    NETWORK_UNIT=2 sync_bench --networks 100mbit --models gpt --compute 150 \
        --methods "$methods,none/ring,auto" "$@"
}

# Rank 0 tells of every step; after some of them the network is another.
change() { # [--json FILE] [thinwire bench sync's flags]
    local json=$SCRATCH/change.json flags=()
    while [ $# -gt 0 ]; do
        case "$1" in
            --json) json=$2 ;;
            *) flags+=("$1" "$2") ;;
        esac
        shift 2
    done
    [ -x "$THINWIRE" ] || fail "no $THINWIRE, run cargo build --release"
    machine
    network_up 2 1gbit || fail "a network that changes needs root"
    network_ranks "$THINWIRE" bench sync --model gpt --compute 500 --methods auto --steps 150 \
        --every-step --json "${flags[@]}" 2>"$SCRATCH/errors" | while read -r line; do
        case "$line" in
            *'"step":58,'*) network_reshape 250mbit ;;
            *'"step":108,'*) network_reshape 1gbit ;;
        esac
        echo "$line"
    done >"$json"
    network_down
    "$PYTHON" "$BENCH/sync.py" --steps 20 <"$json"
}
