"""What the kernel lets processes do here, a word a line, for ci/test.sh: then tests may not leave it out.

  cma       one copies memory of another, here of itself (process_vm_readv)
  zerocopy  sockets send without a copy (MSG_ZEROCOPY), though the kernel may copy after all
"""

import ctypes
import os
import socket

SO_ZEROCOPY = 60


class Piece(ctypes.Structure):
    """struct iovec"""

    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


def copies_memory():
    buffers = [ctypes.create_string_buffer(8) for _ in range(2)]
    target, source = (Piece(ctypes.addressof(buffer), 8) for buffer in buffers)
    one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
    call = ctypes.CDLL(None).process_vm_readv
    call.restype = ctypes.c_ssize_t
    return call(os.getpid(), ctypes.byref(target), one, ctypes.byref(source), one, none) == 8


def sends_without_a_copy():
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        except OSError:
            return False
    return True


if copies_memory():
    print("cma")
if sends_without_a_copy():
    print("zerocopy")
