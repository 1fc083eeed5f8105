"""What one plain TCP stream carries between ranks 0 and 1: one way, and both ways at once.

Started once per rank like gloo.py; ranks from 2 on leave at once. Rank 0 prints one JSON line per
direction pattern; `bytes` went each way, timed until the last of them had arrived. Standard library only.

    python bench/peers/tcp.py
"""

import json
import os
import socket
import statistics
import threading
import time

PIECE = 1 << 20
SECONDS = 1.0
RUNS = 3


def main() -> None:
    rank = int(os.environ["RANK"])
    if rank > 1:
        return
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    connection = listen(address) if rank == 0 else connect(address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    pieces = 4
    rounds = []
    # Sized so that a run lasts about SECONDS: the first round is the warm-up.
    while pieces:
        seconds = exchange(connection, rank, pieces, both=False)
        if seconds < SECONDS / 3:
            proposal = min(4096, max(2 * pieces, int(pieces * SECONDS / seconds)))
        else:
            proposal = 0
        proposal = agree(connection, rank, proposal)
        rounds.append(pieces)
        pieces = proposal
    pieces = rounds[-1]
    for name, both in (("tcp one way", False), ("tcp both ways", True)):
        seconds = [exchange(connection, rank, pieces, both) for _ in range(RUNS)]
        if rank == 0:
            line = {
                "peer": name,
                "world": 2,
                "bytes": pieces * PIECE,
                "seconds_median": statistics.median(seconds),
                "runs": RUNS,
                "network": os.environ.get("NETWORK", "unknown"),
            }
            print(json.dumps(line), flush=True)


def exchange(connection, rank: int, pieces: int, both: bool) -> float:
    """Sends from rank 0 to rank 1, or both ways; the time until both sides have everything."""
    agree(connection, rank, 0)
    start = time.perf_counter()
    threads = []
    if both or rank == 0:
        threads.append(threading.Thread(target=send, args=(connection, pieces)))
    if both or rank == 1:
        threads.append(threading.Thread(target=receive, args=(connection, pieces)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    agree(connection, rank, 0)
    return time.perf_counter() - start


def send(connection, pieces: int) -> None:
    piece = bytes(PIECE)
    for _ in range(pieces):
        connection.sendall(piece)


def receive(connection, pieces: int) -> None:
    piece = memoryview(bytearray(PIECE))
    left = pieces * PIECE
    while left:
        got = connection.recv_into(piece[: min(PIECE, left)])
        if got == 0:
            raise ConnectionError("the other rank left")
        left -= got


def agree(connection, rank: int, number: int) -> int:
    """Rank 0's number on both sides; also a barrier."""
    if rank == 0:
        connection.sendall(number.to_bytes(8, "little"))
        exactly(connection, 8)
        return number
    number = int.from_bytes(exactly(connection, 8), "little")
    connection.sendall(bytes(8))
    return number


def exactly(connection, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise ConnectionError("the other rank left")
        data += part
    return data


def listen(address):
    with socket.create_server(address) as server:
        server.settimeout(30)
        return server.accept()[0]


def connect(address):
    deadline = time.monotonic() + 30
    while True:
        try:
            connection = socket.create_connection(address, timeout=30)
            connection.settimeout(None)
            return connection
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    main()
