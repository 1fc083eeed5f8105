# Seconds until a validation loss: sourced by run.sh, which has network_up, say and fail.

time_to_loss() {
    local networks=1gbit,100mbit,20mbit world=2 models=gpt,lstm,cnn json=$SCRATCH/time_to_loss.json rest=()
    local methods=plain@1,fp16@1,powersgd-4:10@64,auto@1
    take_flags 'networks world models methods json ...' "$@"
    need_plugin
    machine
    : >"$json"
    local network model
    for network in ${networks//,/ }; do
        network_up "$world" "$network" || { say "skipped network $network"; network_down; continue; }
        for model in ${models//,/ }; do
            say "$network, $model"
            NETWORK_SECONDS_MAX=7200 network_ranks "$PYTHON" "$BENCH/python/time_to_loss.py" --model "$model" \
                --methods "$methods" "${rest[@]}" 2>"$SCRATCH/errors" >>"$json" ||
                say "failed: $(tail -n 3 "$SCRATCH/errors")"
        done
        network_down
    done
    "$PYTHON" "$BENCH/python/time_to_loss_table.py" <"$json"
}
