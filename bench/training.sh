#!/usr/bin/env bash
# Training under each codec, one job after the other on the same network: sourced by run.sh.
#
# Every job prints one JSON line per codec, from rank 0: `thinwire train --json` ends with its
# summary; bench/training.py makes the table.

training() { # [--networks LIST] [--worlds LIST] [--codecs LIST] [--rounds N] [--json FILE] [thinwire train's flags]
    local networks=100mbit,1gbit worlds=2,4 codecs=none,int8,int4,auto rounds=1
    local json=$SCRATCH/training.json rest=()
    take_flags 'networks worlds codecs rounds json ...' "$@"
    need_binary
    machine
    : >"$json"
    local network world round codec
    for network in ${networks//,/ }; do
        for world in ${worlds//,/ }; do
            network_up "$world" "$network" || { say "skipped network $network"; network_down; continue; }
            for ((round = 1; round <= rounds; round++)); do
                for codec in ${codecs//,/ }; do
                    say "$network, $world ranks, $codec, round $round of $rounds"
                    train "$network" "$world" "$codec" >>"$json"
                done
            done
            network_down
        done
    done
    "$PYTHON" "$BENCH/training.py" <"$json"
}

# The summary of one job, with where it ran in front.
train() { # NETWORK WORLD CODEC
    local summary folder=$SCRATCH/train
    mkdir -p "$folder"
    if summary=$(cd "$folder" && network_ranks "$THINWIRE" train --codec "$3" --json "${rest[@]}" \
        2>"$SCRATCH/errors" | tail -n 1); then
        echo "{\"network\": \"$1\", \"world\": $2, \"codec\": \"$3\", \"summary\": $summary}"
    else
        say "failed: $3: $(tail -n 3 "$SCRATCH/errors")"
    fi
}
