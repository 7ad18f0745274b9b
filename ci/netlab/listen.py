#!/usr/bin/env python3
"""Listens at an interface for the messages of mpi-tests/bench/survive.c, whose bytes grow by 31: says "listening", and at the end of
its input how many packets of a kibibyte and more there were, and in how many of them 64 such bytes stand in a row. For ci/netlab/matrix.py."""

import selectors
import socket
import sys

ALL, ROW, LEAST = 3, 64, 1024  # ETH_P_ALL
STEPS = bytes([31]) * ROW


def has_a_message(packet):
    # In the middle: headers are before, and long messages fill packets.
    part = packet[256:1024]
    return STEPS in bytes((b - a) & 255 for a, b in zip(part, part[1:]))


def main():
    packets = found = 0
    listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    listener.bind((sys.argv[1], 0))
    print("listening", flush=True)
    both = selectors.DefaultSelector()
    both.register(listener, selectors.EVENT_READ)
    both.register(sys.stdin, selectors.EVENT_READ)
    while True:
        ready = [key.fileobj for key, _ in both.select()]
        if listener in ready:
            packet = listener.recv(2048)
            if len(packet) >= LEAST:
                packets += 1
                found += has_a_message(packet)
        elif sys.stdin in ready:
            break
    print(packets, found)


if __name__ == "__main__":
    main()
