# What training loses by each codec: sourced by run.sh.

accuracy() { # [--json FILE] [accuracy.py's flags]
    local json=$SCRATCH/accuracy.json rest=()
    while [ $# -gt 0 ]; do
        case "$1" in
            --json) json=$2 ;;
            *) rest+=("$1" "$2") ;;
        esac
        shift 2
    done
    "$PYTHON" -c 'import torch, thinwire' 2>/dev/null || fail "$PYTHON has no torch or no thinwire (set PYTHON)"
    network_up 4 loopback
    NETWORK_SECONDS_MAX=7200 network_ranks "$PYTHON" "$BENCH/python/accuracy.py" "${rest[@]}" \
        2>"$SCRATCH/errors" >"$json" || say "failed: $(tail -n 3 "$SCRATCH/errors")"
    "$PYTHON" "$BENCH/python/accuracy_table.py" <"$json"
}
