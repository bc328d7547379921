"""Run as a task of the launcher: hold the connection to the host on which the task runs.

The launcher's SIGTERM becomes the word `end`. If this process is killed, the connection's standard input
ends, and with it the task.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import msgspec

from tfdist.cluster.config import ClusterConfig
from tfdist.engines.ssh.plan_file import NO_CONNECTION, PLAN, Order, Plan, read_plan
from tfdist.errors import LOST
from tfdist.launcher.environment import SECRET
from tfdist.launcher.report_messages import JoinedPieces, read_line
from tfdist.launcher.run_events import Progressed
from tfdist.launcher.send_reports import report_event, send_progress

_SECONDS_BETWEEN_SIGNS = 10.0  # of life, for the other end


def main() -> int:
    """Run the task that TF_CONFIG names on its host; return its exit status."""
    path = Path(os.environ[PLAN])
    plan, cluster = read_plan(path), ClusterConfig.from_environment()
    task = str(cluster.task)
    host = plan.tasks[task]
    process = subprocess.Popen(
        plan.words_for(host, "run"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
    reader = threading.Thread(target=_read_reports, args=[process.stderr], daemon=True)
    reader.start()
    send = _Sender(process)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.signal(signal.SIGTERM, lambda *_: send(b"end\n"))
    send(_order(plan, task, path.parent.name) + b"\n")  # as a whole, before any end
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    while True:
        try:
            status = process.wait(_SECONDS_BETWEEN_SIGNS)
        except subprocess.TimeoutExpired:
            send(b"\n")
            continue
        reader.join(_SECONDS_BETWEEN_SIGNS)  # why the connection was lost
        if status in (NO_CONNECTION, *range(-64, 0)):
            print(f"tfdist: {task}: the connection to {host} is lost", flush=True)
            return LOST
        return status


def _read_reports(stream: BinaryIO) -> None:
    """Pass the reports of a chief on to the launcher, and print what ssh itself says."""
    pieces = JoinedPieces()
    for piece in stream:
        if not (line := pieces.add(piece.rstrip(b"\n"))):
            continue
        match read_line(line):
            case None:
                print(line.decode(errors="backslashreplace"), flush=True)
            case Progressed() as report:  # which goes to the launcher's own file too
                send_progress(report)
            case _:
                report_event(line)


class _Sender:
    """Write to the standard input of a process, which may have ended."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._pipe = process.stdin

    def __call__(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # its exit status tells why
            while data and self._pipe is not None:
                data = data[self._pipe.write(data) :]


def _order(plan: Plan, task: str, run: str) -> bytes:
    order = Order(
        plan=plan,
        run_dir=f"{plan.runs}/{run}",
        task=task,
        tf_config=os.environ["TF_CONFIG"],
        secret=os.environ[SECRET],
    )
    return msgspec.json.encode(order)


if __name__ == "__main__":
    sys.exit(main())
