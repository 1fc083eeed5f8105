#!/usr/bin/env bash
# One network namespace per host and one with a bridge between them; every link shaped in both
# directions by a token bucket. A host has NETWORK_UNIT ranks (1 by default), which reach each other over
# its loopback. Nothing outside these namespaces is touched, and they are removed
# at the end, however it ends.
#
#   bench/network.sh RANKS NETWORK COMMAND ...    run COMMAND once per rank, rank 0's output is ours
#   source bench/network.sh                       network_up, network_ranks, network_exec, network_down
#
# NETWORK: 1mbit … 999mbit | 1gbit | 10gbit (shaped) | unshaped (namespaces only) | loopback (no namespaces,
# no root); 1gbit+1gbit+250mbit gives each host a rate of its own, and hosts beyond these the last; 1gbit@100ms
# has a round trip of 100 ms between hosts, by devices that delay (bench/delay.py). Every command sees torchrun's
# variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, as all ranks share this machine's cores, MASTER_ADDR,
# MASTER_PORT), THINWIRE_TOKEN, and NETWORK_INTERFACE, the interface that reaches the others.
# NETWORK_SECONDS_MAX bounds one command (600 by default). NETWORK_CORES binds ranks to cores: all to one
# (shared), or one each (each).

NETWORK_ID="tw$$"
NETWORK_RANKS=0
NETWORK_UNIT="${NETWORK_UNIT:-1}"
NETWORK_NAME=loopback
# The network as it was given, with its round trip.
NETWORK_GIVEN=loopback
# The round trip between hosts in milliseconds, if links delay.
NETWORK_DELAY=
NETWORK_DELAY_PID=
NETWORK_SECONDS_MAX="${NETWORK_SECONDS_MAX:-600}"

network_fail() { echo "error: $*" >&2; return 2; }

# The hosts, and the namespace and the address of one.
network_hosts() { echo $(((NETWORK_RANKS + NETWORK_UNIT - 1) / NETWORK_UNIT)); }
network_namespace() { echo "$NETWORK_ID-$1"; }
network_address() { [ "$NETWORK_NAME" = loopback ] && echo 127.0.0.1 || echo "10.77.0.$(($1 + 1))"; }

# Bursts that behave: small enough to shape, large enough to reach the rate.
network_burst() {
    case "$1" in
        [1-9]mbit | [1-9][0-9]mbit) echo 32kb ;;
        [1-9][0-9][0-9]mbit) echo 64kb ;;
        1gbit) echo 256kb ;;
        10gbit) echo 2mb ;;
        *) network_fail "unknown network '$1', expected 1mbit to 999mbit, 1gbit, 10gbit, unshaped or loopback" ;;
    esac
}

# The rate of a host's link.
network_rate() { # HOST NETWORK
    local rates
    IFS=+ read -ra rates <<<"$2"
    echo "${rates[$1]:-${rates[-1]}}"
}

# What TCP hands over at once must pass the bucket whole: the kernel would else cut it into single
# packets, and spend half a core on what a real card does alone.
network_shape() { # NAMESPACE INTERFACE HOST
    [ "$NETWORK_NAME" = unshaped ] && return 0
    local rate burst
    rate=$(network_rate "$3" "$NETWORK_NAME")
    burst=$(network_burst "$rate") || return
    if [[ "$burst" = *kb ]] && [ "${burst%kb}" -le 64 ]; then
        ip -n "$1" link set "$2" gso_max_size $((${burst%kb} * 896)) || return
    fi
    tc -n "$1" qdisc add dev "$2" root tbf rate "$rate" burst "$burst" latency 50ms
}

# Gives every link another rate while it is in use.
network_reshape() { # NETWORK
    local rate burst node bridge host
    bridge=$(network_namespace bridge)
    for ((host = 0; host < $(network_hosts); host++)); do
        node=$(network_namespace "$host")
        rate=$(network_rate "$host" "$1")
        burst=$(network_burst "$rate") || return
        tc -n "$node" qdisc change dev eth0 root tbf rate "$rate" burst "$burst" latency 50ms || return
        tc -n "$bridge" qdisc change dev "port$host" root tbf rate "$rate" burst "$burst" latency 50ms || return
    done
}

network_up() { # RANKS NETWORK
    NETWORK_RANKS=$1 NETWORK_NAME=${2%@*} NETWORK_GIVEN=$2 NETWORK_DELAY=
    if [[ "$2" = *@* ]]; then
        [[ "$2" =~ ^[^@]+@([0-9]+)ms$ ]] || { network_fail "round trip of '$2', expected as in 1gbit@100ms"; return; }
        NETWORK_DELAY=${BASH_REMATCH[1]}
        [ "$NETWORK_NAME" != loopback ] || { network_fail "network '$2', expected namespaces for a round trip, as in unshaped@100ms"; return; }
    fi
    [ "$NETWORK_NAME" = loopback ] && return 0
    local rate
    for rate in $(tr + ' ' <<<"$NETWORK_NAME"); do
        [ "$rate" = unshaped ] || network_burst "$rate" >/dev/null || return
    done
    [ "$(id -u)" = 0 ] || { network_fail "network '$2' needs root for its namespaces, 'loopback' does not"; return; }
    command -v tc >/dev/null || { network_fail "network '$2' needs ip and tc (iproute2)"; return; }
    local bridge host node
    bridge=$(network_namespace bridge)
    ip netns add "$bridge" || return
    ip -n "$bridge" link add bridge0 type bridge || return
    ip -n "$bridge" link set bridge0 up || return
    for ((host = 0; host < $(network_hosts); host++)); do
        ip netns add "$(network_namespace "$host")" || return
    done
    network_links "$bridge" || return
    for ((host = 0; host < $(network_hosts); host++)); do
        node=$(network_namespace "$host")
        ip -n "$node" address add "$(network_address "$host")/24" dev eth0 || return
        ip -n "$node" link set lo up || return
        ip -n "$node" link set eth0 up || return
        ip -n "$bridge" link set "port$host" master bridge0 up || return
        network_shape "$node" eth0 "$host" || return
        network_shape "$bridge" "port$host" "$host" || return
    done
}

# A link from each host to the bridge.
network_links() { # BRIDGE
    local host ends=() delay ready
    for ((host = 0; host < $(network_hosts); host++)); do
        if [ -n "$NETWORK_DELAY" ]; then
            ends+=("$(network_namespace "$host")" eth0 "$1" "port$host")
        else
            ip link add eth0 netns "$(network_namespace "$host")" type veth peer name "port$host" netns "$1" || return
        fi
    done
    [ -n "$NETWORK_DELAY" ] || return 0
    # A round trip passes four links.
    delay=$(awk "BEGIN { print $NETWORK_DELAY / 4 }")
    exec {ready}< <(exec python3 "$(dirname "${BASH_SOURCE[0]}")/delay.py" "$delay" "${ends[@]}")
    NETWORK_DELAY_PID=$!
    read -r -t 20 -u "$ready" || network_fail "the devices that delay are not ready within 20 s" || return
    exec {ready}<&-
}

network_down() {
    [ "$NETWORK_NAME" = loopback ] && return 0
    [ -z "$NETWORK_DELAY_PID" ] || kill "$NETWORK_DELAY_PID" 2>/dev/null
    NETWORK_DELAY_PID=
    local node name
    for name in $(seq 0 $(($(network_hosts) - 1))) bridge; do
        node=$(network_namespace "$name")
        ip netns pids "$node" 2>/dev/null | xargs -r kill -9 2>/dev/null
        ip netns delete "$node" 2>/dev/null
    done
    return 0
}

# The cores of a rank, as taskset takes them.
network_cores() { # RANK
    case "$NETWORK_CORES" in
        shared) echo 0 ;;
        each) echo $(($1 % $(nproc))) ;;
    esac
}

# One command in one rank's place, bounded in time.
network_exec() { # RANK COMMAND ...
    local rank=$1 place=() interface=lo cores=()
    shift
    [ "${NETWORK_CORES:-any}" = any ] || cores=(taskset -c "$(network_cores "$rank")")
    if [ "$NETWORK_NAME" != loopback ]; then
        place=(ip netns exec "$(network_namespace $((rank / NETWORK_UNIT)))")
        interface=eth0
    fi
    "${place[@]}" timeout --kill-after=5 "$NETWORK_SECONDS_MAX" env \
        RANK="$rank" WORLD_SIZE="$NETWORK_RANKS" LOCAL_RANK="$rank" LOCAL_WORLD_SIZE="$NETWORK_RANKS" \
        MASTER_ADDR="$(network_address 0)" MASTER_PORT="${MASTER_PORT:-29500}" \
        THINWIRE_TOKEN="${THINWIRE_TOKEN:-measured between namespaces}" \
        NETWORK="$NETWORK_GIVEN" NETWORK_INTERFACE="$interface" "${cores[@]}" "$@"
}

# Ends commands that `network_exec` runs in the background.
network_stop() { # PID ...
    local pid
    for pid in "$@"; do
        # The shell of the function waits for its child, which passes the signal on.
        pkill -TERM -P "$pid" || kill "$pid" 2>/dev/null
    done
}

# One command in every rank's place at once; rank 0's output is ours, the others' goes to stderr.
network_ranks() { # COMMAND ...
    local rank pids=() status=0 pid
    MASTER_PORT=$((20000 + RANDOM % 9000))
    for ((rank = 1; rank < NETWORK_RANKS; rank++)); do
        network_exec "$rank" "$@" >&2 &
        pids+=($!)
    done
    network_exec 0 "$@" || status=$?
    for pid in "${pids[@]}"; do
        [ "$status" = 0 ] || network_stop "$pid"
        wait "$pid" || { [ "$status" = 0 ] && status=1; }
    done
    return "$status"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    set -u
    [ $# -ge 3 ] || { network_fail "usage: bench/network.sh RANKS NETWORK COMMAND ..."; exit 2; }
    trap network_down EXIT
    trap 'exit 130' INT TERM
    network_up "$1" "$2" || exit 2
    shift 2
    network_ranks "$@"
fi
