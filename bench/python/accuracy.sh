# What trainings lose by each method: sourced by run.sh, which has network_up, say and fail.

# `auto` trains on a slow network, since it chooses by what a network can hide; fixed codecs lose the
# same on every one, and train on loopback.
accuracy() { # [--methods LIST|all] [--world N] [--network NETWORK] [--json FILE] [accuracy.py's flags]
    local json=$SCRATCH/accuracy.json world=2 network=20mbit methods='' fixed auto rest=()
    take_flags 'json world network methods ...' "$@"
    need_plugin
    case "$methods" in
        '' | all) methods=$(PYTHONPATH=$BENCH/python${PYTHONPATH:+:$PYTHONPATH} "$PYTHON" -c \
            'import sys, accuracy; print(accuracy.ALL + ",auto" if sys.argv[1] else accuracy.METHODS)' "$methods") ;;
    esac
    fixed=$(tr , '\n' <<<"$methods" | grep -v '^auto' | paste -s -d , -)
    auto=$(tr , '\n' <<<"$methods" | grep '^auto' | paste -s -d , -)
    : >"$json"
    [ -z "$fixed" ] || trainings loopback "$fixed"
    [ -z "$auto" ] || trainings "$network" "$auto"
    "$PYTHON" "$BENCH/python/accuracy_table.py" <"$json"
}

trainings() { # NETWORK METHODS: with the variables of accuracy
    say "$1, $world ranks: $2"
    network_up "$world" "$1" || { say "skipped $2: no network $1"; network_down; return; }
    NETWORK_SECONDS_MAX=36000 network_ranks "$PYTHON" "$BENCH/python/accuracy.py" --methods "$2" "${rest[@]}" \
        2>"$SCRATCH/errors" >>"$json" || say "failed: $(tail -n 3 "$SCRATCH/errors")"
    network_down
}
