"""Logs: what a task prints ends no task, whatever becomes of the disk, and fills no disk unnoticed."""

import os
import re
import signal
import subprocess
import sys

import pytest
from launched import SECONDS, alive, driver, holds, nothing_left, run, started, until  # noqa: F401  # a fixture

from tfdist.cluster.config import ClusterConfig

pytestmark = pytest.mark.usefixtures("nothing_left")

ONE = {"workers": 1}
FILL = """
import os, sys, time
from pathlib import Path
here = Path({here!r})
def fill(part):
    size = os.statvfs(here).f_blocks * os.statvfs(here).f_frsize * part
    with open(here / "filler", "wb", 0) as file:
        while file.tell() < size:
            try:
                file.write(b"f" * 4096)
            except OSError:
                return
"""


def on_a_small_disk(code, folder, before=":"):
    """Return the command line that launches code as one task whose logs are on a disk of 1 MiB."""
    own = ["--mount"] if os.geteuid() == 0 else ["--mount", "--user", "--map-root-user"]
    mount = f'mount -t tmpfs -o size=1m none "$0" && {before}'
    probe = subprocess.run(["unshare", *own, "sh", "-c", mount, folder], capture_output=True, timeout=SECONDS)
    if probe.returncode:
        pytest.skip(f"this system lets nobody mount a small disk: {probe.stderr.decode().strip()}")
    command = driver(FILL.format(here=str(folder)) + code, folder, cluster=ONE)
    return ["unshare", *own, "sh", "-c", f'{mount} && exec "$@"', folder, *command]


def test_a_full_disk_costs_what_is_printed_meanwhile_and_nothing_else(tmp_path):
    code = (
        "print('before', flush=True)\n"
        "while 'before' not in (here / 'logs/worker-0.log').read_text(): time.sleep(0.01)\n"
        "fill(2)\n"
        "for _ in range(2000): print('x' * 99)\n"
        "(here / 'filler').unlink()\nprint('after', flush=True)\n"
    )
    command = on_a_small_disk(code, tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    warning = f"[launcher] WARNING: cannot write {tmp_path}/logs/worker-0.log (No space left on device): "
    assert done.stdout.count(f"{warning}what worker:0 prints is lost until there is room\n") == 1
    (lost,) = re.findall(r"\[(\d+) bytes are lost here\]", done.stdout)
    kept = sum(len(line) - len("[worker:0] ") for line in done.stdout.splitlines(True) if "x" in line[-3:])
    # A line that was cut in two by the gap is shown as two, with one end of a line more.
    assert int(lost) + kept in (200_000, 200_001)
    assert done.stdout.splitlines()[-2:] == ["[worker:0] after", "done"]


def test_a_long_log_leaves_the_rest_of_the_disk_to_others(tmp_path):
    disk, is_said = tmp_path / "disk", tmp_path / "said"
    disk.mkdir()
    code = (
        "fill(0.97)\nos.write(1, b'x' * 99 + b'\\n')\n"  # print would write twice, and lose once
        f"while not Path({str(is_said)!r}).exists(): time.sleep(0.01)\n"
        "(here / 'checkpoint').write_bytes(b'c' * 20_000)\n(here / 'filler').unlink()\nprint('after')\n"
    )
    before = 'mkdir "$0/logs" && truncate --size 65M "$0/logs/worker-0.log"'
    with started(on_a_small_disk(code, disk, before), text=True) as process:
        while "WARNING: cannot write" not in (line := process.stdout.readline()):
            assert line, process.stderr.read()
        is_said.touch()
        rest, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (0, "")
    assert "(the disk is almost full)" in line
    assert "[100 bytes are lost here]\n[worker:0] after\n" in rest


def test_a_log_without_end_is_said(tmp_path):
    (tmp_path / "logs").mkdir()
    with open(tmp_path / "logs/worker-0.log", "wb") as file:
        file.truncate((1 << 30) - 10)
    _, shown = run("print('x' * 20, flush=True); print(1)", tmp_path, ClusterConfig.local())
    assert shown.count(f"[launcher] WARNING: {tmp_path}/logs/worker-0.log has grown to 1.1 GB\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes by /proc")
@pytest.mark.parametrize("has_room", [True, False])
def test_who_writes_the_logs_may_be_killed(tmp_path, nothing_left, has_room):  # noqa: F811
    (tmp_path / "limited.py").write_text(
        "import os\nfork, refused = os.fork, []\ndef limited():\n"
        f"    if os.path.exists({str(tmp_path / 'full')!r}) and len(refused) < 2:\n"
        "        refused.append(1)\n        raise BlockingIOError(11, 'no room')\n"
        "    return fork()\nos.fork = limited\n"
    )
    code = (
        "import time\nfrom pathlib import Path\nprint('up', flush=True)\n"
        f"while not Path({str(tmp_path)!r}, 'killed').exists(): print('x' * 99); time.sleep(0.001)\n"
        "for _ in range(2000): print('y' * 99)\n"
    )
    command = driver(code, tmp_path, cluster=ONE)
    if not has_room:
        command[2] = (
            "from tfdist.launcher import start_supervisor as it\n"
            f"it._SUPERVISOR_PROGRAM = open({str(tmp_path / 'limited.py')!r}).read() + it._SUPERVISOR_PROGRAM\n"
        ) + command[2]
    with started(command) as process:
        writer = _log_writer(tmp_path, nothing_left)
        (tmp_path / "full").touch()
        os.kill(writer, signal.SIGKILL)
        (tmp_path / "killed").touch()
        out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, b"")
    assert out.count(b"y" * 99) == 2000


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes by /proc")
def test_who_writes_the_logs_may_be_stopped(tmp_path, nothing_left):  # noqa: F811
    code = (
        "import time\nfrom pathlib import Path\nprint('up', flush=True)\n"
        f"while not Path({str(tmp_path)!r}, 'stopped').exists(): time.sleep(0.01)\n"
        "for _ in range(2000): print('y' * 99)\n"
    )
    with started(driver(code, tmp_path, cluster=ONE)) as process:
        os.kill(_log_writer(tmp_path, nothing_left), signal.SIGSTOP)
        (tmp_path / "stopped").touch()
        out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, b"")
    assert out.count(b"y" * 99) == 2000


def _log_writer(run_dir, mark):
    until(lambda: holds(run_dir / "logs/worker-0.log", "up"), "the task is up")
    copies = [pid for pid, command in alive(mark).items() if "supervisor.supervisor" in command]
    return max(copies, key=_start_time)


def _start_time(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])
