#!/usr/bin/env bash
# Open MPI over TCP alone, or within one host over shared memory alone, on the network that bench/network.sh has
# set up: sourced by run.sh.
#
#   mpi_available                     whether mpicc and mpirun are there
#   mpi_build FOLDER                  compiles mpi.c into FOLDER
#   mpi_all_reduce FOLDER WHICH BYTES ...   WHICH: default (Open MPI's own choice), ring, or
#                                           shm (its own choice, over shared memory)
#   mpi_ranks FOLDER TRANSPORTS [mpirun's options] COMMAND ...   a rank of MPI in each place; FOLDER is scratch

mpi_available() { command -v mpicc >/dev/null && command -v mpirun >/dev/null; }

mpi_build() { mpicc -O2 -o "$1/mpi" "$BENCH/peers/mpi.c"; }

mpi_all_reduce() { # FOLDER WHICH BYTES ...
    local folder=$1 which=$2 transports=tcp,self options=()
    shift 2
    [ "$which" = shm ] && transports=vader,self
    [ "$which" = ring ] && options=(--mca coll_tuned_use_dynamic_rules 1
        --mca coll_tuned_allreduce_algorithm 4)
    mpi_ranks "$folder" "$transports" "${options[@]}" "$folder/mpi" "mpi $which" "$NETWORK_NAME" "$@"
}

mpi_ranks() { # FOLDER TRANSPORTS [mpirun's options] COMMAND ...
    local folder=$1 transports=$2 rank interface=lo
    shift 2
    local options=(--mca pml ob1 --mca btl "$transports" --oversubscribe --bind-to none)
    if [ "$NETWORK_NAME" != loopback ]; then
        interface=eth0
        : >"$folder/hosts"
        for ((rank = 0; rank < NETWORK_RANKS; rank++)); do
            echo "$(network_address "$rank") slots=1" >>"$folder/hosts"
        done
        # Instead of ssh, a program that enters the namespace with that address.
        printf '#!/bin/sh\nnode="%s-$((${1##*.} - 1))"\nshift\n' "$NETWORK_ID" >"$folder/agent"
        # shellcheck disable=SC2016
        echo 'exec ip netns exec "$node" unshare --uts sh -c "hostname $node; $*"' >>"$folder/agent"
        chmod +x "$folder/agent"
        options+=(--hostfile "$folder/hosts" --mca plm_rsh_agent "$folder/agent"
            --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include "$interface"
            --mca orte_keep_fqdn_hostnames 1)
    fi
    options+=(--mca btl_tcp_if_include "$interface")
    network_exec 0 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TMPDIR="$folder" \
        mpirun -n "$NETWORK_RANKS" "${options[@]}" "$@"
}
