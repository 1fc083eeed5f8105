#!/usr/bin/env bash
# Plans of one GPT on four ranks: what is predicted of each beside what is measured. The cluster file
# comes from a calibration in the same network, with all ranks at work at once, before each round;
# nothing is fitted to the trainings.
#
#   bench/run.sh plans --data FILE [--networks 100mbit,1gbit] [--steps 8] [--rounds 2] [--batch 16] [--codec int8:stochastic] [--model NAME] [--only REGEX] [--shares yes|no] [--json FILE]
#
# Ranks have equal shares of the cores, which takes these from all else on the machine, except with `--shares no`.
# At the end the planner's own choice, and the one it makes where gradients may be encoded with --codec.
# Plans take turns, every other round backwards: a machine that is shared is not equally fast at all
# times, and how far the rounds lie apart says what a measurement is worth.

set -u
BENCH=$(cd "$(dirname "$0")" && pwd)
source "$BENCH/network.sh"
source "$BENCH/shares.sh"

RANKS=4
networks=100mbit,1gbit
steps=8
rounds=2
batch=16
codec=int8:stochastic
only=.
shares=yes
model="gpt:layers=6,width=128,heads=4,vocabulary=256,positions=128"
data=""
json=""
THINWIRE="${THINWIRE:-target/release/thinwire}"
PYTHON="${PYTHON:-python3}"

fail() { echo "error: $*" >&2; exit 2; }
say() { echo "$*" >&2; }

while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || fail "no value for $1"
    case "$1" in
        --networks) networks=$2 ;;
        --steps) steps=$2 ;;
        --rounds) rounds=$2 ;;
        --batch) batch=$2 ;;
        --codec) codec=$2 ;;
        --only) only=$2 ;;
        --shares) shares=$2 ;;
        --model) model=$2 ;;
        --data) data=$2 ;;
        --json) json=$2 ;;
        *) fail "unknown option '$1', expected --networks, --steps, --rounds, --batch, --codec, --only, --shares, --model, --data or --json" ;;
    esac
    shift 2
done
[ -x "$THINWIRE" ] || fail "no program at $THINWIRE; cargo build --release first, or set THINWIRE"
THINWIRE=$(realpath "$THINWIRE")
[ -z "$data" ] || data=$(realpath "$data")
SCRATCH=$(mktemp -d)
trap 'network_down; shares_down; rm -rf "$SCRATCH"' EXIT
trap 'exit 130' INT TERM
json=${json:-$SCRATCH/lines.json}
: >"$json"

# Name, and what `thinwire plan price` is told.
PLANS=(
    "data|--mesh 4 --cuts data"
    "data, 2 micro-batches|--mesh 4 --cuts data --micro-batches 2"
    "data, ZeRO 1|--mesh 4 --cuts data --zero 1"
    "data, ZeRO 3|--mesh 4 --cuts data --zero 3"
    "data, recomputed|--mesh 4 --cuts data --recompute"
    "tensor|--mesh 1,4 --cuts plain"
    "tensor and sequence|--mesh 1,4 --cuts grid"
    "data 2 x tensor 2|--mesh 2,2 --cuts plain"
    "data 2 x tensor 2, sequence|--mesh 2,2 --cuts grid"
    "data 2 x tensor 2, ZeRO 1|--mesh 2,2 --cuts plain --zero 1"
    "gpipe 4, 4 micro-batches|--stages 4 --schedule gpipe --micro-batches 4"
    "gpipe 4, 8 micro-batches|--stages 4 --schedule gpipe --micro-batches 8"
    "1f1b 4, 4 micro-batches|--stages 4 --micro-batches 4"
    "1f1b 4, 8 micro-batches|--stages 4 --micro-batches 8"
    "1f1b 4, 16 micro-batches|--stages 4 --micro-batches 16"
    "zero-bubble 4, 8 micro-batches|--stages 4 --schedule zero-bubble --micro-batches 8"
    "interleaved 2 x 2, data 2|--stages 2 --mesh 2 --cuts data --schedule interleaved:2 --micro-batches 4"
    "1f1b 2, data 2|--stages 2 --mesh 2 --cuts data --micro-batches 4"
    "1f1b 2, data 2, ZeRO 1|--stages 2 --mesh 2 --cuts data --micro-batches 4 --zero 1"
    "1f1b 2, tensor 2|--stages 2 --mesh 1,2 --cuts plain --micro-batches 4"
)

# A bucket of tokens that has rested lets through at once what a real link would not: a message of a
# micro-batch may be no longer than the usual one. These are as small as still reach the rate; with
# 32 kB a link of 1 Gbit/s carries 0.35.
network_burst() { # NETWORK
    case "$1" in
        *mbit) echo 8kb ;;
        10gbit) echo 2mb ;;
        *) echo 256kb ;;
    esac
}

# One planned training, as one line.
train() { # NETWORK NAME PLAN
    local line flags=(--plan "$3" --steps "$steps" --link none --report none --checkpoint-dir none --sample-bytes 0 --validation-batches 0 --json)
    [ -z "$data" ] || flags+=(--data "$data")
    if line=$(cd "$SCRATCH" && network_ranks "$THINWIRE" train "${flags[@]}" 2>"$SCRATCH/errors" | tail -n 1) &&
        [ -n "$line" ]; then
        echo "{\"network\": \"$1\", \"plan\": \"$2\", \"summary\": $line}" >>"$json"
    else
        say "failed: $2: $(grep -h error: "$SCRATCH/errors" | tail -n 1)"
    fi
}

# Calibrates, and prices all plans as the machine is now; their names are in `names`.
priced() { # NETWORK
    local cluster="$SCRATCH/$1.toml" plan verb
    network_ranks "$THINWIRE" plan calibrate --output "$cluster" 2>"$SCRATCH/errors" ||
        fail "calibration: $(tail -n 2 "$SCRATCH/errors")"
    say "$1: $(grep -E '^(tflops|memory_gbyte|latency|gbit|overhead)' "$cluster" | tr '\n' ' ')"
    local what=(--model "$model" --cluster "$cluster" --batch "$batch")
    names=()
    for plan in "${PLANS[@]}" "auto|" "auto, $codec|--codecs $codec"; do
        [[ "${plan%%|*}" =~ $only ]] || continue
        verb=price
        [[ "$plan" != auto* ]] || verb="make --precision single"
        # shellcheck disable=SC2086
        if "$THINWIRE" plan $verb "${what[@]}" ${plan#*|} --output "$SCRATCH/${#names[@]}.toml" >/dev/null 2>"$SCRATCH/errors"; then
            names+=("${plan%%|*}")
        else
            say "no plan: ${plan%%|*}: $(head -n 1 "$SCRATCH/errors")"
        fi
    done
}

export RAYON_NUM_THREADS=1
[ "$shares" = no ] || shares_up "$RANKS" "$THINWIRE" train --ranks 1 --model "$model" --batch $(((batch + RANKS - 1) / RANKS)) \
    --steps 1000000 --report none --checkpoint-dir none
say "machine: $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg)"
for network in ${networks//,/ }; do
    network_up "$RANKS" "$network" || exit 2
    for ((round = 0; round < rounds; round++)); do
        priced "$network"
        order=("${!names[@]}")
        ((round % 2 == 0)) || mapfile -t order < <(printf '%s\n' "${order[@]}" | tac)
        for index in "${order[@]}"; do
            train "$network" "${names[$index]}" "$SCRATCH/$index.toml"
        done
    done
    network_down
done
"$PYTHON" "$BENCH/plans.py" <"$json"
