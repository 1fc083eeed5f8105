# DDP under every hook: sourced by run.sh, which has network_up, say and fail. With --hosts the ranks of each
# world lie on so many hosts, and methods as none/host sum on a host first.

ddp() {
    local networks=100mbit,1gbit worlds=2,4 models=gpt,cnn rounds=1 hosts=0 json=$SCRATCH/ddp.json rest=()
    local methods=plain,fp16,powersgd-1,powersgd-2,powersgd-4,none-clear,none,int8@4,int4@4,powersgd:4@4,auto@4
    while [ $# -gt 0 ]; do
        case "$1" in
            --networks) networks=$2 ;;
            --worlds) worlds=$2 ;;
            --models) models=$2 ;;
            --methods) methods=$2 ;;
            --rounds) rounds=$2 ;;
            --hosts) hosts=$2 ;;
            --json) json=$2 ;;
            --data | --batch | --warmup | --steps | --loss-steps | --device) rest+=("$1" "$2") ;;
            *) fail "unknown flag '$1'" ;;
        esac
        shift 2
    done
    need_plugin
    machine
    : >"$json"
    local network world model
    for network in ${networks//,/ }; do
        for world in ${worlds//,/ }; do
            [ "$hosts" = 0 ] || NETWORK_UNIT=$((world / hosts))
            network_up "$world" "$network" || { say "skipped network $network"; network_down; continue; }
            for model in ${models//,/ }; do
                say "$network, $world ranks, $model"
                NETWORK_SECONDS_MAX=3600 network_ranks "$PYTHON" "$BENCH/python/ddp.py" --model "$model" \
                    --methods "$methods" --rounds "$rounds" "${rest[@]}" 2>"$SCRATCH/errors" >>"$json" ||
                    say "failed: $(tail -n 3 "$SCRATCH/errors")"
            done
            network_down
        done
    done
    "$PYTHON" "$BENCH/python/table.py" <"$json"
}
