"""The Python interpreter of a context: it runs pieces of code, one after the
other, in __main__, and tells what came of each.

Frames, a length of four bytes (big-endian) and JSON, come on one descriptor
and go out on another; a byte on a third acknowledges a rich output, so that
what is printed afterwards comes after it. A fourth is a file with the number of
the last run that was interrupted. Standard output and error are read
by the agent as they are. Only what Python brings along is needed; IPython is
used where it is installed.
"""

import ast
import builtins
import fcntl
import io
import json
import linecache
import os
import signal
import sys
import threading
import traceback

OWN = "<cove>"  # the file name of this program
AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
KEPT_CELLS = 500  # of how many runs tracebacks can show lines
MAX_TRACEBACK = 64 << 10


class State:
    """What the driver knows about the run of the moment."""

    running = False  # user code runs: SIGINT is for it
    critical = 0  # in the middle of a frame: SIGINT waits
    pending = False  # SIGINT came meanwhile
    child = False  # a fork of the interpreter
    run = 0
    flags = AWAIT  # with what "from __future__" has switched on
    outputs = 0
    bytes_left = 0
    limits = {}
    env = {}  # default environment, as last told
    asked = {}  # figures that were saved to files
    shown = set()  # figures that were shown
    loop = None
    shell = None
    quiet = False  # the value of the last expression is not to be shown


state = State()
main = sys.modules["__main__"]
lock = threading.RLock()
dumps, loads = json.dumps, json.loads  # code may change what it finds


def high(fd):
    """Moves a descriptor to where code that closes all it knows rarely looks."""
    for least in (900, 200, 20):
        try:
            moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
        except OSError:
            continue
        os.close(fd)
        return moved
    return fd


IN, OUT, ACK, MARK = high(3), high(4), high(5), high(6)
STDIO = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (0, 1, 2)]
PRIVATE = {IN, OUT, ACK, MARK, *STDIO}


def protect():
    """Keeps os.close and os.closerange away from the driver's descriptors."""
    close, closerange = os.close, os.closerange

    def careful_close(fd):
        if fd in PRIVATE and not state.child:
            raise OSError(9, "Bad file descriptor")
        close(fd)

    def careful_closerange(low, stop):
        for fd in sorted(f for f in PRIVATE if low <= f < stop and not state.child):
            closerange(low, fd)
            low = fd + 1
        closerange(low, stop)

    os.close, os.closerange = careful_close, careful_closerange
    return close


raw_close = protect()


class Critical:
    """Holds back an interrupt until a frame is complete."""

    def __enter__(self):
        state.critical += 1
        lock.acquire()

    def __exit__(self, *exc):
        lock.release()
        state.critical -= 1
        if state.pending and not state.critical:
            state.pending = False
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt


def read_exactly(n):
    parts = []
    while n:
        data = os.read(IN, min(n, 1 << 20))
        if not data:
            os._exit(0)  # the agent is done with this interpreter
        parts.append(data)
        n -= len(data)
    return b"".join(parts)


def receive():
    try:
        return loads(read_exactly(int.from_bytes(read_exactly(4), "big")))
    except OSError:
        os._exit(70)  # code has closed the descriptor


def send(message, acknowledged=False):
    if state.child:
        return
    data = dumps(message, allow_nan=False).encode()
    data = memoryview(len(data).to_bytes(4, "big") + data)
    with Critical():
        try:
            while data:
                data = data[os.write(OUT, data):]
            if acknowledged:
                os.read(ACK, 1)
        except OSError:
            os._exit(70)


def flush():
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        try:
            getattr(sys, name).flush()
        except BaseException:  # replaced, closed, broken: not for us to repair
            pass
