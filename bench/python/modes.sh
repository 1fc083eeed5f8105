# Modes of training beside each other: sourced by run.sh, which has network_up, say and fail.

# Losses do not depend on the network and are computed on loopback, once per seed; seconds of steps on each
# network, with the first seed's weights. `whole` trains by one method on one network.
# `--slow`: how fast three ranks train beside one at half their speed.
modes() { # --slow [slow.py's flags] | [--parts curve,time,whole] [--networks LIST] [--models LIST] [--methods 'A B'] [--json FILE] [modes.py's flags]
    if [ "${1:-}" = --slow ]; then
        need_plugin
        machine
        network_up 4 loopback
        network_ranks "$PYTHON" "$BENCH/python/slow.py" "${@:2}"
        return
    fi
    local parts=curve,time networks=100mbit,20mbit,5mbit models=gpt,lstm,cnn json=$SCRATCH/modes.json rest=()
    local methods='plain int8@1 ecsq:0.7@1 powersgd:4@1 powersgd-4:10@64 post-local:30:100 local:30@int8 diloco:30@none
        diloco:30,fragments=4,delay=7@int4 diloco:30,outer=sgd,lr=1@blocktopk:64/4096:lloyd:2@decay:0.95
        diloco:30@blocktopk:64/4096:lloyd:2@decay:0.95 sma:0.1@int8 sma:0.5,every=10@int8 pair:1 pair:10'
    take_flags 'parts networks models methods json ...' "$@"
    need_plugin
    machine
    local part network
    for part in ${parts//,/ }; do
        case "$part" in
            curve) modes_part loopback ;;
            time) for network in ${networks//,/ }; do modes_part "$network" --seeds 1; done ;;
            whole) for network in ${networks//,/ }; do modes_part "$network"; done ;;
            *) fail "unknown part '$part', expected curve, time or whole" ;;
        esac
    done
    "$PYTHON" "$BENCH/python/modes_table.py" <"$json"
}

modes_part() { # NETWORK [FLAG VALUE ...]: with the variables of modes
    local network=$1 all=$methods
    shift
    [ "$part" != time ] || all+=' auto@1'
    say "$part on $network"
    network_up 4 "$network" || { say "skipped network $network"; network_down; return; }
    # Methods have no blanks and no stars, and are words of their own.
    # shellcheck disable=SC2086
    NETWORK_SECONDS_MAX=36000 network_ranks "$PYTHON" "$BENCH/python/modes.py" --part "$part" --json "$json" \
        --models "$models" "${rest[@]}" "$@" --methods $all 2>"$SCRATCH/errors" ||
        say "failed: $(tail -n 3 "$SCRATCH/errors")"
    network_down
}
