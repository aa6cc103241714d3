"""Writes all that passes an interface to a file: `capture.py INTERFACE FILE`, until it is told to end."""

import signal
import socket
import sys

EVERY_PROTOCOL, RECEIVE_BUFFER_FORCE = 3, 33

interface, file = sys.argv[1:]
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERY_PROTOCOL))
tap.bind((interface, 0))
tap.setsockopt(socket.SOL_SOCKET, RECEIVE_BUFFER_FORCE, 64 << 20)
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
with open(file, "wb") as out:
    print("captures", flush=True)
    while True:
        out.write(tap.recv(1 << 17))
