# JAX, Keras on JAX and TensorFlow: sourced by run.sh, which has network_up, say and fail. PYTHON has JAX.

jax() { # [--parts overlap,training] [--networks LIST] [--frameworks LIST] [--data FILE] [--json FILE] [the programs' flags]
    local parts=overlap,training networks=100mbit,400mbit frameworks=jax,keras,tensorflow json=$SCRATCH/jax.json
    local data='' methods='' target='' codecs='' rounds='' overlap_steps='' overlap_batch='' launch=network_ranks rest=()
    take_flags 'parts networks frameworks json data methods target codecs rounds overlap-steps overlap-batch ...' "$@"
    local overlap=(${codecs:+--codecs "$codecs"} ${rounds:+--rounds "$rounds"})
    overlap+=(${overlap_steps:+--steps "$overlap_steps"} ${overlap_batch:+--batch "$overlap_batch"})
    has jax thinwire || fail "$PYTHON has no JAX or no thinwire (set PYTHON)"
    if [ -z "$methods" ]; then
        methods=compute,gloo,none,int8,auto
        if mpi_available && has mpi4jax; then
            methods+=,mpi4jax
        else
            say "skipped mpi4jax: $PYTHON has no mpi4jax, or there is no mpirun"
        fi
    fi
    [[ ",$methods," = *,mpi4jax,* ]] && launch=mpi_ranks
    say "skipped Horovod's tape: 0.28.1 builds against TensorFlow 2.21 only without xla_mpi_ops.cc"
    machine
    : >"$json"
    export XLA_FLAGS="--xla_cpu_multi_thread_eigen=false" OMP_NUM_THREADS=1 TF_CPP_MIN_LOG_LEVEL=3
    local network part framework
    for network in ${networks//,/ }; do
        network_up 2 "$network" || { say "skipped network $network"; network_down; continue; }
        for part in ${parts//,/ }; do
            case "$part" in
                overlap)
                    for framework in ${frameworks//,/ }; do
                        say "$network, overlap, $framework"
                        jax_ranks network_ranks jax_overlap.py --framework "$framework" "${overlap[@]}"
                    done
                    ;;
                training)
                    [ -n "$data" ] || fail "--parts training needs --data FILE"
                    say "$network, training"
                    jax_ranks "$launch" jax_training.py --data "$data" --methods "$methods" "${rest[@]}"
                    ;;
                *) fail "unknown part '$part', expected overlap or training" ;;
            esac
        done
        network_down
    done
    "$PYTHON" "$BENCH/python/jax_table.py" ${target:+--target "$target"} <"$json"
}

jax_ranks() { # LAUNCH PROGRAM [FLAG VALUE ...]: with the variables of jax
    local launch=("$1") program=$2
    shift 2
    [ "${launch[0]}" = network_ranks ] || launch+=("$SCRATCH" tcp,self)
    KERAS_BACKEND=jax NETWORK_SECONDS_MAX=3600 "${launch[@]}" "$PYTHON" "$BENCH/python/$program" "$@" \
        2>"$SCRATCH/errors" >>"$json" || say "failed: $(tail -n 3 "$SCRATCH/errors")"
}
