"""Pickled Python objects of many sizes through mpi4py, with child processes started in between
(a fork while the provider is live must neither break nor corrupt its traffic)."""

import argparse
import subprocess
import sys

from mpi4py import MPI

COMM = MPI.COMM_WORLD
RANK = COMM.Get_rank()
SIZE = COMM.Get_size()


def expect(condition, message):
    if not condition:
        sys.stderr.write(f"FAILED objects: rank {RANK} of {SIZE}: {message}\n")
        sys.stderr.flush()
        COMM.Abort(1)


def make(sender, length):
    """An object that both sides can build: nested, with text, numbers and raw bytes."""
    unit = bytes((sender * 7 + i * 31) % 256 for i in range(251))
    return {
        "sender": sender,
        "length": length,
        "text": "é" * min(length, 1000),
        "numbers": [i * 0.5 for i in range(min(length, 2000))],
        "bytes": (unit * (length // 251 + 1))[:length],
    }


def same(got, sender, length, what):
    expect(got == make(sender, length), f"{what}: object of length {length} from {sender} differs")


def ring(length):
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    request = COMM.isend(make(RANK, length), dest=right, tag=length % 1000)
    same(COMM.recv(source=left, tag=length % 1000), left, length, "send/recv")
    request.wait()
    same(COMM.sendrecv(make(RANK, length), dest=right, source=left), left, length, "sendrecv")


def collectives(length):
    root = length % SIZE
    same(COMM.bcast(make(root, length) if RANK == root else None, root=root), root, length, "bcast")
    gathered = COMM.gather(make(RANK, length), root=root)
    if RANK == root:
        for sender, one in enumerate(gathered):
            same(one, sender, length, "gather")
    scattered = COMM.scatter([make(i, length) for i in range(SIZE)] if RANK == root else None, root=root)
    same(scattered, RANK, length, "scatter")
    exchanged = COMM.alltoall([make(RANK, length + i) for i in range(SIZE)])
    for sender, one in enumerate(exchanged):
        same(one, sender, length + RANK, "alltoall")
    expect(COMM.allreduce(RANK + 1) == SIZE * (SIZE + 1) // 2, "allreduce")


def fork_while_receiving():
    """A message arrives, before or while a child runs; the child exits through exec."""
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    request = COMM.isend(make(RANK, 200000), dest=right, tag=9)
    done = subprocess.run([sys.executable, "-c", "print('child')"], capture_output=True, check=True)
    expect(done.stdout == b"child\n", f"child printed {done.stdout!r}")
    same(COMM.recv(source=left, tag=9), left, 200000, "around a fork")
    request.wait()
    expect(subprocess.run(["true"]).returncode == 0, "true failed")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=int, default=100)
    rounds = max(1, 2 * parser.parse_args().scale // 100)
    lengths = [0, 1, 10, 100, 1000, 5000, 20000, 100000, 1000000]
    for _ in range(rounds):
        for length in lengths:
            ring(length)
            collectives(length)
        fork_while_receiving()
    ring(4000000)
    COMM.Barrier()
    if RANK == 0:
        print("OK objects", flush=True)


main()
