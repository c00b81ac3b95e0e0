"""A small program that prints as engines do, well and badly: what the capture is tested on.

Usage: talker.py ACT [NUMBER...]. Lines go to where the real engines print them (see `tracekit formats`).
"""

import os
import signal
import socket
import subprocess
import sys
import time

GGML = "[SYCL_OP_TIMING] dev=0 op=MUL_MAT name=Qcur-{layer} ne=1024x1x1x1 us={n}\n"
SCALER = '[llm-scaler][moe-kernel] device=0 kernel="moe ws up routed cutlass int4" wait_ms={n}\n'
VLLM = "[vllm-xpu-timing] rank=0 label=tp.all_reduce count={n} last_ms=0.106150\n"


def ggml(count: int) -> None:
    """Whole lines on stderr, if the variable says so."""
    if os.environ.get("GGML_SYCL_OP_TIMING", "0") != "0":
        for n in range(count):
            sys.stderr.write(GGML.format(layer=n % 8, n=n))
    print("done", count)


def scaler(count: int) -> None:
    """Torn lines on stderr: seven writes each, from two processes into one pipe."""
    child = os.fork()
    for n in range(count):
        text = SCALER.format(n=n)
        for part in (text[:10], text[10:24], text[24:40], text[40:]):
            os.write(2, part.encode())
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def vllm(count: int) -> None:
    """Regions on stdout, each to be seen at once; what the environment asked for on stderr."""
    for n in range(1, count + 1):
        print(VLLM.format(n=n), end="", flush=True)
    for name in sorted(os.environ):
        if name.startswith("VLLM_XPU"):
            print(f"{name}={os.environ[name]}", file=sys.stderr)


def slow(count: int, gap_ms: int) -> None:
    """One line each so many milliseconds, with the monotonic time of its writing in it."""
    for _ in range(count):
        os.write(1, f"{time.monotonic_ns()}\n".encode())
        time.sleep(gap_ms / 1000)


def flood(count: int) -> None:
    """Numbered lines as fast as they go, alternately large and small writes."""
    for start in range(0, count, 5000):
        lines = "".join(f"line {n:09d} {'x' * (n % 60)}\n" for n in range(start, min(start + 5000, count)))
        os.write(1, lines[:100].encode())
        rest = memoryview(lines[100:].encode())
        while rest:
            rest = rest[os.write(1, rest) :]


def hang() -> None:
    """Say something, then nothing."""
    print("about to hang", flush=True)
    time.sleep(1000)


def stubborn() -> None:
    """Ignore what asks it to end, but tell of it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda told, _frame: os.write(1, f"told {told}\n".encode()))
    print("ignoring", flush=True)
    time.sleep(1000)


def chatter() -> None:
    """Ignore what asks it to end, and go on printing numbered lines with the time."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for n in range(1_000_000):
        os.write(1, f"{n} {time.monotonic_ns()}\n".encode())
        time.sleep(0.001)


def die(number: int) -> None:
    """Die by a signal, in the middle of a line."""
    print("last words", flush=True)
    os.write(2, b"[SYCL_OP_TIMING] dev=0 op=MUL")
    signal.signal(number, signal.SIG_DFL) if number not in (9, 19) else None
    os.kill(os.getpid(), number)
    time.sleep(10)


def family(seconds: int) -> None:
    """Leave grandchildren: one in the group, one in a session of its own, one that ignores TERM; print their pids."""
    for kind in ("plain", "session", "stubborn"):
        child = subprocess.Popen(
            [sys.executable, "-c", _GRANDPARENT, kind, str(seconds)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        # In one write: print() makes several where output is unbuffered.
        os.write(1, f"{kind} {child.stdout.readline().strip()}\n".encode())
        child.wait()


_GRANDPARENT = """
import os, signal, sys, time
kind, seconds = sys.argv[1], float(sys.argv[2])
if os.fork() == 0:
    if kind == "session":
        os.setsid()
    if kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, f"{os.getpid()}\\n".encode())
    null = os.open(os.devnull, os.O_RDWR)
    if kind != "plain":
        os.dup2(null, 1)
    time.sleep(seconds)
os._exit(0)
"""


def family_and_wait(seconds: int) -> None:
    """The same, and stay."""
    family(seconds)
    time.sleep(seconds)


def serve(port: int) -> None:
    """Listen as an RPC worker does: time on stderr per connection. A port in use: a message, and status 0."""
    print("banner, unflushed")
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(("127.0.0.1", port))
    except OSError:
        print("Failed to create server socket", file=sys.stderr)
        sys.exit(0)
    server.listen()
    for connection in range(1, 1_000_000):
        client, _ = server.accept()
        print(f"Accepted client connection {connection}", flush=True)
        ggml(3)
        client.close()


def client(endpoints: str, seconds: float) -> None:
    """Use each endpoint once, until it has printed what it does; run for a while, print a result."""
    for endpoint in endpoints.split(","):
        host, port = endpoint.split(":")
        with socket.create_connection((host, int(port))) as worker:
            worker.recv(1)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        time.sleep(0.05)
    print('[{"avg_ts": 1.0}]')


def stall(text: str, times: int) -> None:
    """Print a stall pattern so often, cut between two writes, then hang."""
    for _ in range(times):
        line = f"ERROR 11-30 [x.py:1] {text} here\n".encode()
        os.write(2, line[:25])
        time.sleep(0.01)
        os.write(2, line[25:])
    time.sleep(1000)


def is_terminal() -> None:
    """Tell whether outputs are terminals, and write bytes that a terminal would change."""
    os.write(1, f"{os.isatty(1)} {os.isatty(2)} {os.isatty(0)}\n".encode() + bytes(range(1, 256)) + b"\n\r\n")


def echo() -> None:
    """Print what comes in."""
    os.write(1, sys.stdin.buffer.read())


def main() -> None:
    act, *given = sys.argv[1:]
    values = [int(v) if v.isdigit() else v for v in given]
    globals()[act](*values)


if __name__ == "__main__":
    main()
