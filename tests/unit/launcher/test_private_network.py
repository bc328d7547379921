"""Who can reach the tasks: each other always, and others only where there is no private network."""

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from launched import MARK, SECONDS, alive, driver, holds, nothing_left, run, started, until  # noqa: F401  # a fixture

import tfdist
from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.outcome import LaunchError
from tfdist.launcher.run_events import TaskStarted, read_events
from tfdist.launcher.supervisor.private_network import why_no_private_network

DOWNLOADS = "raise OSError('URL fetch failure: [Errno -3] Temporary failure in name resolution')"

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has private networks"),
]

# Each worker listens on all interfaces, as TensorFlow's servers do, and then asks the other one.
SERVE = """
import json, os, socket, sys, time
spec = json.loads(os.environ["TF_CONFIG"])
ports = [int(address.split(":")[1]) for address in spec["cluster"]["worker"]]
index = spec["task"]["index"]
server = socket.create_server(("", ports[index]))
give_up = time.monotonic() + 300
while True:
    try:
        socket.create_connection(("127.0.0.1", ports[1 - index]), timeout=5)
        break
    except ConnectionRefusedError:
        if time.monotonic() > give_up:
            raise
        time.sleep(0.02)
server.accept()
print("reached the other one, port", ports[index], os.getuid(), flush=True)
time.sleep(600)
"""

# Joins the network of the first task whose process a run has recorded, and asks a port there.
JOIN = """
import json, socket, sys
from tfdist.launcher.supervisor.private_network import join_private_network
events = [json.loads(line) for line in open(sys.argv[1] + "/events.jsonl")]
join_private_network(next(event["pid"] for event in events if event["event"] == "task_started"))
socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=5).close()
print("joined")
"""

needs_namespace = pytest.mark.skipif(bool(why_no_private_network()), reason="no private network here")


def reachable(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def joined(run_dir, port, *, code=JOIN, prefix=(), python=sys.executable, **options):
    """Return what another process prints that joins the private network of a run."""
    events = run_dir / "events.jsonl"  # the launcher may write them after what the tasks print
    until(lambda: sum(isinstance(event, TaskStarted) for event in read_events(events)) == 2, "all are noted")
    command = [*prefix, python, "-c", code, str(run_dir), str(port)]
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, text=True, check=False, **options)
    return done.stdout + done.stderr


def ports_of(run_dir):
    logs = [run_dir / f"logs/worker-{i}.log" for i in range(2)]
    for log in logs:
        until(lambda log=log: holds(log, "port") and log.read_text().endswith("\n"), f"{log} tells its port")
    return [int(log.read_text().split("port ")[1].split()[0]) for log in logs]


def test_a_private_network_can_be_had_wherever_unshare_can():
    own = ["--net"] if os.geteuid() == 0 else ["--net", "--user", "--map-root-user"]
    up = "ip link set lo up 2>/dev/null || exit 0"  # without iproute2, that a network can be made must do
    try:
        theirs = subprocess.run(["unshare", *own, "sh", "-c", up], timeout=SECONDS, check=False).returncode
    except FileNotFoundError:
        pytest.skip("needs util-linux")
    assert (theirs == 0) == (why_no_private_network() == "")


@needs_namespace
def test_nobody_outside_reaches_a_private_cluster(tmp_path):
    with started(driver(SERVE, tmp_path)) as process:
        ports = ports_of(tmp_path)
        assert [reachable(port) for port in ports] == [False, False]
        assert joined(tmp_path, ports[0]) == "joined\n"
        process.terminate()
        out, _ = process.communicate(timeout=SECONDS)
    assert b"[launcher] the tasks live in a private network: they reach each other and nobody else\n" in out


def test_without_a_private_network_others_do_and_the_user_is_warned(tmp_path):
    with started(driver(SERVE, tmp_path, network_isolation="never")) as process:
        ports = ports_of(tmp_path)
        assert [reachable(port) for port in ports] == [True, True]
        process.terminate()
        out, _ = process.communicate(timeout=SECONDS)
    (warning,) = (line for line in out.decode().splitlines() if "WARNING" in line)
    assert (
        f"no private network (network_isolation is 'never'): anyone who reaches port {ports[0]}, {ports[1]} of"
        in warning
    )


@needs_namespace
def test_the_launcher_itself_stays_in_its_network(tmp_path):
    before = Path("/proc/self/ns/net").readlink()
    report, _ = run("import os; print(os.readlink('/proc/self/ns/net'))", tmp_path)
    inside = {(tmp_path / f"logs/worker-{i}.log").read_text().strip() for i in range(2)}
    assert report.is_private
    assert len(inside) == 1
    assert str(before) not in inside
    assert Path("/proc/self/ns/net").readlink() == before


@needs_namespace
def test_files_are_read_and_written_as_the_calling_user(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("mine")
    secret.chmod(0o600)
    run(
        f"open({str(tmp_path / 'written')!r}, 'w').write(open({str(secret)!r}).read())",
        tmp_path,
        ClusterConfig.local(),
    )
    status = (tmp_path / "written").stat()
    assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())


root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")


@pytest.fixture
def public_dir(tmp_path_factory):
    """Copy tfdist and msgspec into a directory that every user can reach, and remove it after the test."""
    base = Path(tempfile.mkdtemp(prefix="launcher-", dir="/tmp"))
    base.chmod(0o755)
    try:
        shutil.copytree(Path(tfdist.__file__).parent, base / "lib/tfdist")
        shutil.copytree(Path(msgspec.__file__).parent, base / "lib/msgspec")
        yield base
    finally:
        shutil.rmtree(base)


@root
@needs_namespace
def test_a_user_without_privileges_has_a_private_network_too(public_dir, monkeypatch, nothing_left):  # noqa: F811
    python = next((p for p in ("/usr/bin/python3",) if _same_python(p)), None)
    if python is None or shutil.which("setpriv") is None:
        pytest.skip("needs setpriv, and a Python of this version that everybody can execute")
    nobody = pwd.getpwnam("nobody")
    run_dir = public_dir / "run"
    run_dir.mkdir()
    os.chown(run_dir, nobody.pw_uid, nobody.pw_gid)
    (public_dir / "group").write_text("shared")
    os.chown(public_dir / "group", 0, 4242)
    (public_dir / "group").chmod(0o640)
    code = (
        f"import os\nread = open({str(public_dir / 'group')!r}).read()\n"
        f"open({str(run_dir)!r} + '/written', 'a').write(read + ' ')\n"
        "print(os.getuid(), os.getgid(), open('/proc/self/status').read().split('CapEff:')[1].split()[0], flush=True)\n"
    )
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(public_dir / "lib"), MARK: nothing_left}
    prefix = [
        "setpriv",
        "--reuid=nobody",
        "--regid",
        str(nobody.pw_gid),
        "--groups",
        "4242",
        "--no-new-privs",
    ]
    command = driver(code + SERVE, run_dir, prefix=prefix, python=python)
    with started(command, env=env, cwd="/") as process:
        ports = ports_of(run_dir)
        assert [reachable(port) for port in ports] == [False, False]
        asked = {"prefix": prefix, "python": python, "env": env, "cwd": "/"}
        assert joined(run_dir, ports[0], **asked) == "joined\n"
        process.terminate()
        out, err = process.communicate(timeout=SECONDS)
    assert b"private network: they reach each other" in out, err
    log = (run_dir / "logs/worker-0.log").read_text()
    assert log.startswith(f"{nobody.pw_uid} {nobody.pw_gid} 0000000000000000\n")
    written = run_dir / "written"
    assert written.read_text() == "shared shared "
    assert (written.stat().st_uid, written.stat().st_gid) == (nobody.pw_uid, nobody.pw_gid)


@root
@needs_namespace
def test_who_may_not_join_a_private_network_is_told_what_helps(tmp_path):
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    with started(driver(SERVE, tmp_path)) as process:
        port = ports_of(tmp_path)[0]
        # As `tfdist timeline` does it in a container.
        code = JOIN.replace("launcher.supervisor.private_network", "cli.timeline").replace(
            "join_private", "_join_private"
        )
        told = joined(tmp_path, port, code=code, prefix=["setpriv", "--bounding-set=-sys_admin"])
        process.terminate()
        process.communicate(timeout=SECONDS)
    assert "ConfigError: timeline: cannot enter the private network of process" in told
    assert "Operation not permitted. Run it as the user who has started the run, or set" in told


@root
@pytest.mark.parametrize("network_isolation", ["auto", "always"])
def test_root_that_may_not_move_is_warned_or_refused(tmp_path, network_isolation):
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    prefix = ["setpriv", "--bounding-set=-sys_admin"]  # as in a container
    command = driver("print('ran')", tmp_path, prefix=prefix, network_isolation=network_isolation)
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, text=True, check=False)
    if network_isolation == "auto":
        assert done.returncode == 0
        assert (
            "WARNING: no private network (unshare: Operation not permitted): anyone who reaches port"
            in done.stdout
        )
        assert "[worker:1] ran" in done.stdout
    else:
        assert done.returncode == 2
        assert done.stderr == (
            "tfdist: network_isolation: no private network: unshare: Operation not permitted. Set it to 'auto'\n"
        )
        assert "ran" not in done.stdout


def _same_python(path):
    if not Path(path).exists():
        return False
    version = "import sys; print(sys.version_info[:2])"
    done = subprocess.run([path, "-c", version], capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.stdout.strip() == str(sys.version_info[:2])


@needs_namespace
@pytest.mark.parametrize(("isolation", "is_told"), [("always", True), ("never", False)])
def test_a_script_that_needs_the_network_is_told_where_it_is(tmp_path, isolation, is_told):
    with pytest.raises(LaunchError) as failure:
        run(DOWNLOADS, tmp_path, network_isolation=isolation)
    assert ("reach nothing outside of their private network" in failure.value.shown) == is_told
