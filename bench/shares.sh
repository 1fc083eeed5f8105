# An equal share of a core for every rank at every moment, whatever the others do: where ranks share
# cores, one that computes while others wait would else be faster than it was calibrated.
#
#   source bench/network.sh; source bench/shares.sh       shares_up RANKS, shares_down; network_exec obeys
#
# Ranks take the cores in turns, and those of a core divide it by the weights of their control groups.
# A spinner of idle priority in each group takes what its rank leaves, so that no other gets it. The
# kernel divides a core when something wakes on it or its clock ticks, every 4 ms; a clock of real-time
# priority wakes every 0.25 ms in place of that. So 1 ms of work takes as many times 1 ms as 20 do;
# with quotas (cpu.max), one that has waited runs its first milliseconds at full speed.

SHARES_ROOT=""
SHARES_CORES=""
SHARES_HELPERS=()

shares_up() { # RANKS
    local root rank folder core
    SHARES_CORES=$(nproc)
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
    for ((rank = 0; rank < $1; rank++)); do
        folder="$SHARES_ROOT-$rank"
        mkdir -p "$folder"
        # Far above the rest of the machine, which has 1024 and 100.
        if [ -e "$folder/cpu.weight" ]; then
            echo 10000 >"$folder/cpu.weight"
        else
            echo 100000 >"$folder/cpu.shares"
        fi
        (
            shares_enter "$rank"
            exec chrt --idle 0 bash -c 'while :; do :; done'
        ) &
        SHARES_HELPERS+=($!)
    done
    for ((core = 0; core < SHARES_CORES && core < $1; core++)); do
        taskset --cpu-list "$core" chrt --fifo 10 "$PYTHON" -c '
import time
while True:
    time.sleep(250e-6)
' &
        SHARES_HELPERS+=($!)
    done
}

shares_down() {
    [ -n "$SHARES_ROOT" ] || return 0
    kill "${SHARES_HELPERS[@]}" 2>/dev/null
    wait "${SHARES_HELPERS[@]}" 2>/dev/null
    rmdir "$SHARES_ROOT"-*
    SHARES_ROOT="" SHARES_HELPERS=()
}

# Puts the shell that calls it in a rank's place.
shares_enter() { # RANK
    [ -n "$SHARES_ROOT" ] || return 0
    echo "$BASHPID" >"$SHARES_ROOT-$1/cgroup.procs"
    taskset --cpu-list --pid "$(($1 % SHARES_CORES))" "$BASHPID" >/dev/null
}

eval "$(declare -f network_exec | sed '1s/network_exec/network_exec_whole/')"
network_exec() { # RANK COMMAND ...
    (shares_enter "$1" && network_exec_whole "$@")
}
