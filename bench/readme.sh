# The six results of README.md again, each by its commands: sourced by run.sh.
#
# Measurements leave their JSON lines in a folder, as ROW-NAME.json, and their commands in ROW.commands, from
# which python/readme.py prints the rows of README beside the figures that README has.

readme() { # --data FILE [--digits FOLDER] [--graph FILE] [--only ROWS] [--json FOLDER]
    local data='' digits='' graph='' only=1,2,3,4,5,6 folder=$SCRATCH/readme row
    while [ $# -gt 0 ]; do
        case "$1" in
            --data) data=$(realpath "$2") ;;
            --digits) digits=$(realpath "$2") ;;
            --graph) graph=$(realpath "$2") ;;
            --only) only=$2 ;;
            --json) folder=$(realpath "$2") ;;
            *) fail "unknown flag '$1'" ;;
        esac
        shift 2
    done
    [ -n "$data" ] || fail "no --data, a file of text"
    need_binary
    need_plugin
    need_release "$THINWIRE"
    need_release "$PYTHON" -m thinwire
    export PYTHON THINWIRE
    mkdir -p "$folder"
    machine
    for row in ${only//,/ }; do
        rm -f "$folder/$row".commands "$folder/$row"-*.json
        "readme_$row"
    done
    "$PYTHON" "$BENCH/python/readme.py" "$ROOT/README.md" "$folder"
}

need_release() { # COMMAND ...
    case "$("$@" --version)" in
        *"debug build"*) fail "$* is a debug build, expected a release (hint: cargo build --release, pip install .)" ;;
    esac
}

readme_1() {
    local about=(--worlds 2 --models gpt --batch 12 --data "$data")
    again 1 steps bench/run.sh ddp --networks 100mbit "${about[@]}" \
        --methods plain,fp16,powersgd-4@64,int4@1,int3@1,powersgd:4@1
    again 1 losses bench/run.sh ddp --networks loopback "${about[@]}" --methods none,int3@1 --steps 4 --loss-steps 120
}

# From step 400 on `auto` has its whole error budget.
readme_2() {
    again 2 steps bench/run.sh ddp --networks 100mbit --worlds 2 --models gpt,lstm,cnn,layer --data "$data" \
        --methods auto@1 --warmup 400 --steps 16
}

readme_3() {
    [ -n "$digits" ] || { say "skipped row 3: no --digits, a folder with MNIST's test files"; return; }
    again 3 seconds bench/run.sh time-to-loss --networks 1gbit,100mbit --data "$data" --digits "$digits" --seeds 3 --limit 40
    again 3 long bench/run.sh time-to-loss --networks 100mbit --models gpt --data "$data" \
        --methods fp16@1,powersgd-4:10@64,auto@1 --seeds 2 --target 2.0 --limit 150
}

readme_4() {
    local gpu
    gpu=$("$PYTHON" -c 'import torch; print(torch.cuda.get_device_name())' 2>/dev/null) ||
        { say "skipped row 4: $PYTHON finds no GPU"; return; }
    echo "{\"gpu\": \"$gpu\"}" >"$folder/4-gpu.json"
    again 4 steps bench/run.sh ddp --networks 1gbit --worlds 2 --models gpt --device cuda --batch 64 --steps 6 \
        --data "$data" --methods plain,powersgd-4@64,int4@4
}

readme_5() {
    again 5 pauses bench/run.sh churn --fault kill --rounds 200 --spread 0.5 -- --steps 100000 --batch 16 --codec int8 \
        --link none --width 64 --layers 2 --validation-batches 0 --data "$data"
}

readme_6() {
    [ -n "$graph" ] || { say "skipped row 6: no --graph, cnr-2000.graph-txt.gz"; return; }
    local method
    "$PYTHON" -c 'import gzip, numpy, sys
rows = int(gzip.open(sys.argv[1]).readline())
numpy.save(sys.argv[2], numpy.random.default_rng(1).random((rows, 128), numpy.float32))' "$graph" "$folder/rows.npy"
    "$THINWIRE" graph import "$graph" --features "$folder/rows.npy" --train 0.1 --output "$folder/all.graph" >&2
    for method in hash metis; do
        "$THINWIRE" graph partition "$folder/all.graph" --parts 4 --method "$method" --output "$folder/$method.graph" >&2
    done
    again 6 loading bench/network.sh 4 100mbit "$PYTHON" bench/python/graph_loading.py \
        --hash "$folder/hash.graph" --metis "$folder/metis.graph" --passes 2
}

# Runs a measurement, and keeps its lines and its command.
again() { # ROW NAME PROGRAM ...
    local row=$1 lines=$folder/$1-$2.json
    shift 2
    say "$*"
    echo "$*" >>"$folder/$row.commands"
    case "$2" in
        ddp | time-to-loss) (cd "$ROOT" && bash "$@" --json "$lines") >&2 ;;
        *) (cd "$ROOT" && bash "$@") >"$lines" ;;
    esac
}
