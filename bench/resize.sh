#!/usr/bin/env bash
# A training of a GPT of 10.7 M parameters that grows from 2 to 4 ranks and shrinks to 2 again, each rank in a
# namespace of its own: sourced by run.sh. The trainer prints the pause of each change; a growth hands over
# parameters and moments, 12 bytes per parameter.

resize() { # [--network NETWORK] [--rounds N] [--pause SECONDS] [-- thinwire train's flags]
    local network=1gbit rounds=3 pause=12 round rank
    while [ $# -gt 0 ]; do
        case "$1" in
            --network) network=$2 ;;
            --rounds) rounds=$2 ;;
            --pause) pause=$2 ;;
            --) shift; break ;;
            *) fail "unknown flag '$1'" ;;
        esac
        shift 2
    done
    [ $# -gt 0 ] || set -- --width 384 --layers 6 --heads 6 --context 64 --batch 8
    need_binary
    machine
    network_up 4 "$network" || fail "a network between ranks needs root"
    export THINWIRE_TOKEN='measured between namespaces'
    local address pids=()
    address=$(network_address 0):29400
    network_exec 0 "$THINWIRE" coordinator --listen "$address" --ranks 2:4 2>/dev/null &
    pids+=($!)
    local flags=(--report none --checkpoint-dir none --steps 100000 --codec int8 --validation-batches 0 --link none
        "$@")
    start_member() { # RANK
        network_exec "$1" env THINWIRE_MEMBER=new THINWIRE_COORDINATOR="$address" \
            "$THINWIRE" train --ranks 2:4 "${flags[@]}" >/dev/null 2>>"$SCRATCH/member$1" &
        pids+=($!)
    }
    ask() { network_exec 0 "$THINWIRE" resize "$1" --coordinator "$address" 2>>"$SCRATCH/asked"; }
    sleep 1
    ask 2
    # Two of the four are spares that stand by until the job has a place for them.
    for rank in 0 1 2 3; do start_member "$rank"; done
    sleep $((pause + 3))
    for ((round = 1; round <= rounds; round++)); do
        ask 4
        sleep "$pause"
        ask 2
        sleep "$pause"
    done
    network_stop "${pids[@]}"
    network_down
    grep -h '^epoch' "$SCRATCH"/member* || tail -n 3 "$SCRATCH"/member* "$SCRATCH/asked"
}
