#!/usr/bin/env bash
# Parameter servers on the wire: sourced by run.sh.
#
#   server    push and pull of a dense table beside reduce + broadcast of gloo, and a sparse pull beside
#             a local hash map, in turns

server_build() {
    SERVER_WIRE=${SERVER_WIRE:-$ROOT/target/release/examples/wire}
    [ -x "$SERVER_WIRE" ] || fail "no $SERVER_WIRE, run cargo build --release -p thinwire-server --example wire"
}

server() { # [--networks LIST] [--workers N] [--servers N] [--backups LIST] [--formats LIST] [--size BYTES] [--runs N] [--rounds N] [--json FILE]
    local networks=loopback,1gbit workers=4 servers=2 backups=0,1 formats=f32 size=100000000 runs=5 rounds=3
    local json=$SCRATCH/server.json
    take_flags 'networks workers servers backups formats size runs rounds json' "$@"
    server_build
    machine
    : >"$json"
    local network round
    for network in ${networks//,/ }; do
        network_up $((workers + servers)) "$network" || { say "skipped network $network"; network_down; continue; }
        for ((round = 1; round <= rounds; round++)); do
            say "$network, round $round of $rounds"
            server_round >>"$json"
        done
        network_down
    done
    "$PYTHON" "$BENCH/server.py" <"$json"
}

# Every measurement once on the network that is up; takes the variables of `server`.
server_round() {
    local backup format
    NETWORK_RANKS=$workers network_ranks "$PYTHON" "$BENCH/peers/gloo_server.py" "$size" "$runs" 2>"$SCRATCH/errors" ||
        say "failed: gloo: $(tail -n 3 "$SCRATCH/errors")"
    for backup in ${backups//,/ }; do
        for format in ${formats//,/ }; do
            NETWORK_RANKS=$((workers + servers)) network_ranks "$SERVER_WIRE" dense "$workers" "$servers" "$backup" "$format" \
                "$size" "$runs" 2>"$SCRATCH/errors" || say "failed: dense: $(tail -n 3 "$SCRATCH/errors")"
            NETWORK_RANKS=$((1 + servers)) network_ranks "$SERVER_WIRE" sparse 1 "$servers" "$backup" "$format" \
                25600000 "$runs" 2>"$SCRATCH/errors" || say "failed: sparse: $(tail -n 3 "$SCRATCH/errors")"
        done
    done
}
