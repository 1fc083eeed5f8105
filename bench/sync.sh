#!/usr/bin/env bash
# What an iteration waits for its gradients: sourced by run.sh.
#
#   sync      the stages of the ablation, and what others have built, in one run
#   choice    auto beside the fastest fixed codec within its error budget: a matrix
#   hosts     auto beside sums by flat and by hierarchical algorithms, on two hosts of two ranks each
#   change    auto on a link that is cut to a quarter in mid-run, and recovers

sync_bench() { # [--networks LIST] [--worlds LIST] [--models LIST] [--json FILE] [thinwire-bench sync's flags]
    local networks=1gbit,100mbit worlds=4 models=vgg19,bert-base json=$SCRATCH/sync.json rest=()
    take_flags 'networks worlds models json ...' "$@"
    need_bench
    machine
    : >"$json"
    local network world model
    for network in ${networks//,/ }; do
        for world in ${worlds//,/ }; do
            network_up "$world" "$network" || { say "skipped network $network"; network_down; continue; }
            for model in ${models//,/ }; do
                say "$network, $world ranks, $model"
                NETWORK_SECONDS_MAX=3600 network_ranks "$THINWIRE_BENCH" sync --timeout 600 \
                    --model "$model" "${rest[@]}" 2>"$SCRATCH/errors" >>"$json" ||
                    say "failed: $(tail -n 3 "$SCRATCH/errors")"
            done
            network_down
        done
    done
    "$PYTHON" "$BENCH/sync.py" <"$json"
}

# A matrix of cells, in each auto over the fastest fixed codec within the error budget.
choice() { # [--models LIST] [--networks LIST] [--cores LIST] [--json FILE] [thinwire-bench choice's flags]
    local models=gpt,lstm,cnn,layer,many networks=loopback,1gbit,100mbit,20mbit cores=shared,each
    local json=$SCRATCH/choice.json rest=()
    take_flags 'models networks cores json ...' "$@"
    need_bench
    machine
    : >"$json"
    local network model
    for network in ${networks//,/ }; do
        network_up 2 "$network" || { say "skipped network $network"; network_down; continue; }
        for model in ${models//,/ }; do
            for NETWORK_CORES in ${cores//,/ }; do
                say "$network, $model, cores: $NETWORK_CORES"
                NETWORK_SECONDS_MAX=1800 network_ranks env NETWORK_CORES="$NETWORK_CORES" "$THINWIRE_BENCH" \
                    choice --timeout 300 --model "$model" --compute "$(compute_ms "$model")" \
                    "${rest[@]}" 2>"$SCRATCH/errors" >>"$json" || say "failed: $(tail -n 3 "$SCRATCH/errors")"
            done
        done
        network_down
    done
    NETWORK_CORES=any
    "$PYTHON" "$BENCH/sync.py" --matrix <"$json"
}

# Milliseconds of a core that a step of a model computes.
compute_ms() { # MODEL
    case "$1" in
        cnn) echo 40 ;;
        many) echo 60 ;;
        *) echo 100 ;;
    esac
}

hosts() {
    local codec methods=auto
    for codec in none int8; do methods+=,$codec/two-shot,$codec/hierarchical:2:two-shot; done
    NETWORK_UNIT=2 sync_bench --networks 100mbit --models gpt --compute 150 \
        --methods "$methods,none/ring,auto" "$@"
}

# Rank 0 tells of every step; after some of them the network is another.
change() { # [--json FILE] [thinwire-bench sync's flags]
    local json=$SCRATCH/change.json rest=()
    take_flags 'json ...' "$@"
    need_bench
    machine
    network_up 2 1gbit || fail "a network that changes needs root"
    network_ranks "$THINWIRE_BENCH" sync --model gpt --compute 500 --methods auto --steps 150 \
        --every-step "${rest[@]}" 2>"$SCRATCH/errors" | while read -r line; do
        case "$line" in
            *'"step":58,'*) network_reshape 250mbit ;;
            *'"step":108,'*) network_reshape 1gbit ;;
        esac
        echo "$line"
    done >"$json"
    network_down
    "$PYTHON" "$BENCH/sync.py" --steps 20 --changes 58,108 <"$json"
}
