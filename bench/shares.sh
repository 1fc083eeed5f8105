# An equal share of a core for every rank at every moment, whatever the others do: where ranks share
# cores, one that computes while others wait would else be faster than it was calibrated.
#
#   source bench/network.sh; source bench/shares.sh
#   shares_up RANKS FILLER ...     from here on network_ranks obeys; shares_down
#
# Ranks take the cores in turns, and those of a core divide it by the weights of their control groups.
# While they run, a filler of idle priority in each group takes what its rank leaves, so that no other
# gets it. It should work as ranks do, on caches and memory too: beside an empty loop, pipelines are a
# quarter faster than calibrated.
#
# A core of a shared machine is up to twice as fast at one second as at the next, because others have
# the other half of a physical core: governor.py keeps each at less than half of its best speed. It
# wakes every 0.25 ms. The kernel divides a core when something wakes on it or its clock ticks, every
# 4 ms; so 1 ms of work takes as many times 1 ms as 20 do. With quotas (cpu.max), one that has waited
# runs its first milliseconds at full speed.

SHARES_ROOT=""
SHARES_RANKS=0
SHARES_FILLER=()
SHARES_SPEED=""
# So many times as long as a core's best does work take; half of a physical core is a little less than
# half as fast.
SHARES_SLOWER=2.25

shares_up() { # RANKS FILLER ...
    local root rank folder core
    SHARES_RANKS=$1
    shift
    SHARES_FILLER=("$@")
    for root in /sys/fs/cgroup/cpu /sys/fs/cgroup; do
        if [ -e "$root/cgroup.procs" ] && mkdir "$root/$NETWORK_ID-0" 2>/dev/null; then
            SHARES_ROOT="$root/$NETWORK_ID"
            break
        fi
    done
    if [ -z "$SHARES_ROOT" ]; then
        echo "no shares of cores: ranks that wait leave theirs to others, and predictions are too high" >&2
        return 0
    fi
    for ((rank = 0; rank < SHARES_RANKS; rank++)); do
        folder="$SHARES_ROOT-$rank"
        mkdir -p "$folder"
        # Far above the rest of the machine, which has 1024 and 100.
        if [ -e "$folder/cpu.weight" ]; then
            echo 10000 >"$folder/cpu.weight"
        else
            echo 100000 >"$folder/cpu.shares"
        fi
    done
    SHARES_SPEED=$(for core in $(shares_cores); do
        (shares_govern "$core" measure 4)
    done | awk -v slower="$SHARES_SLOWER" 'NR == 1 || $1 < least { least = $1 } END { print slower * least }')
}

# The cores that have a rank.
shares_cores() {
    local cores
    cores=$(nproc)
    seq 0 $(((cores < SHARES_RANKS ? cores : SHARES_RANKS) - 1))
}

# Becomes a core's governor.
shares_govern() { # CORE ...
    exec taskset --cpu-list "$1" chrt --fifo 10 "$PYTHON" "$BENCH/governor.py" "${@:2}"
}

shares_down() {
    [ -z "$SHARES_ROOT" ] || rmdir "$SHARES_ROOT"-*
    SHARES_ROOT=""
}

# Puts the shell that calls it in a rank's place.
shares_enter() { # RANK
    [ -n "$SHARES_ROOT" ] || return 0
    echo "$BASHPID" >"$SHARES_ROOT-$1/cgroup.procs"
    taskset --cpu-list --pid "$(($1 % $(nproc)))" "$BASHPID" >/dev/null
}

# What divides the cores while ranks run.
shares_fill() {
    local rank core
    for ((rank = 0; rank < SHARES_RANKS; rank++)); do
        (shares_enter "$rank" && exec chrt --idle 0 "${SHARES_FILLER[@]}" >/dev/null 2>&1) &
    done
    for core in $(shares_cores); do
        shares_govern "$core" keep "$SHARES_SPEED" &
    done
}

eval "$(declare -f network_exec | sed '1s/network_exec/network_exec_whole/')"
network_exec() { # RANK COMMAND ...
    (shares_enter "$1" && network_exec_whole "$@")
}

eval "$(declare -f network_ranks | sed '1s/network_ranks/network_ranks_whole/')"
network_ranks() { # COMMAND ...
    local status fillers=()
    if [ -n "$SHARES_ROOT" ]; then
        shares_fill
        mapfile -t fillers < <(jobs -p)
    fi
    network_ranks_whole "$@"
    status=$?
    [ ${#fillers[@]} = 0 ] || { kill "${fillers[@]}" && wait "${fillers[@]}"; } 2>/dev/null
    return "$status"
}
