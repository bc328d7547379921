"""The launcher with real processes: what tasks are given, how they end, and what the caller is told."""

import gc
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from launched import SECONDS, alive, driver, holds, nothing_left, run, started, until  # noqa: F401  # a fixture

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.errors import ConfigError, StorageError
from tfdist.launcher.launch_tasks import launch
from tfdist.launcher.outcome import LaunchError

pytestmark = pytest.mark.usefixtures("nothing_left")

NAME = "import json, os; me = '{type}:{index}'.format(**json.loads(os.environ['TF_CONFIG'])['task'])\n"


def test_each_task_has_its_own_config_log_and_prefix(tmp_path):
    cluster = ClusterConfig.local(workers=2, ps=1)
    report, shown = run("import os; print(os.environ['TF_CONFIG'])", tmp_path, cluster)
    assert {each.task for each in report.exits} == set(cluster.tasks())
    assert all(each.code == 0 and not each.asked for each in report.exits)
    for task in cluster.tasks():
        log = (tmp_path / "logs" / f"{task.type}-{task.index}.log").read_text()
        assert json.loads(log) == cluster.tf_config(*task)
        assert f"[{task}] {log}" in shown


def test_only_logs_and_events_are_left(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    run("import tempfile; print(tempfile.mkstemp()[1])", tmp_path / "run")
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.name != "tmp"}
    logs = {"run/logs", "run/logs/worker-0.log", "run/logs/worker-1.log"}
    assert left == {"run", "run/events.jsonl", *logs}
    assert str(tmp_path / "tmp" / "tfdist-") in (tmp_path / "run/logs/worker-0.log").read_text()


def test_variables_of_other_clusters_are_taken_away_and_no_more(tmp_path, monkeypatch):
    others = [
        "SLURM_PROCID",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "SM_HOSTS",
        "CLUSTER_SPEC",
        "JOB_COMPLETION_INDEX",
    ]
    for name in [*others, "SM_MODEL_DIR", "LATIN"]:
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("LATIN", os.fsdecode(b"caf\xe9"))
    monkeypatch.setenv("TF_CONFIG", "{}")
    run("import json, os; print(json.dumps(dict(os.environ)))", tmp_path, env={"SM_MODEL_DIR": "y"})
    task = json.loads((tmp_path / "logs/worker-1.log").read_text())
    assert not task.keys() & set(others)
    assert task["SM_MODEL_DIR"] == "y"
    assert os.fsencode(task["LATIN"]) == b"caf\xe9"
    assert json.loads(task["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}


def test_a_task_ignores_the_signals_of_a_terminal_and_no_other(tmp_path):
    # The supervisor gets SIGHUP and SIGINT for it.
    # Python ignores SIGPIPE, and would hand that on; so does a shell with what it starts by &.
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
    command = ["grep", "-E", "SigIgn|SigBlk", "/proc/self/status"]
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    try:
        launch(ClusterConfig.local(), command, run_dir=tmp_path, stream=io.StringIO())
    finally:
        signal.signal(signal.SIGQUIT, before)
    assert (tmp_path / "logs/worker-0.log").read_text() == f"SigBlk:\t{0:016x}\nSigIgn:\t{0b11:016x}\n"


def test_the_tasks_are_told_how_long_they_may_take_to_end(tmp_path):
    command = [
        "--grace",
        "7",
        "--run_dir",
        str(tmp_path),
        "--",
        sys.executable,
        "-c",
        "import os; print(os.environ['TFDIST_GRACE'])",
    ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run(
        [sys.executable, "-m", "tfdist", "launch", *command], check=True, timeout=SECONDS, env=environ
    )
    assert (tmp_path / "logs/worker-1.log").read_text() == "7\n"


def test_what_needs_no_proxy_is_added_to(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "example.org")
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    run("import os; print(os.environ['no_grpc_proxy'])", tmp_path)
    assert (tmp_path / "logs/worker-1.log").read_text() == "example.org,127.0.0.1,localhost,::1\n"


def test_a_task_is_alone_in_its_session_with_nothing_to_read_and_no_stray_descriptors(tmp_path):
    code = "import os, sys; print(os.getsid(0) == os.getpid(), sys.stdin.read() == '', sorted(os.listdir('/proc/self/fd')))"
    run(code, tmp_path)
    # 3 is the directory that is being listed; the first worker has the pipe for its progress besides.
    assert (tmp_path / "logs/worker-1.log").read_text() == "True True ['0', '1', '2', '3']\n"
    assert (tmp_path / "logs/worker-0.log").read_text().count("'") == 2 * 5


@pytest.mark.parametrize(
    ("ending", "status", "said"),
    [
        ("sys.exit(3)", 1, "exited with 3 (pid "),
        ("sys.exit(2)", 2, "exited with 2 (pid "),
        ("sys.exit(138)", 138, "exited with 138 (pid "),
        ("os.kill(os.getpid(), 9)", 138, "exited with -9 (SIGKILL, pid "),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 3)", 138, "(signal 37, pid "),
    ],
)
def test_the_first_failure_is_the_root_cause(tmp_path, ending, status, said):
    note = "I0000 00:00:1795267459.73 299 port.cc:153] oneDNN custom operations are on."
    code = NAME + (
        f"import signal, sys, time\nif me == 'worker:1':\n    print('{note}\\nlast words', flush=True)\n    {ending}\ntime.sleep(600)"
    )
    with pytest.raises(LaunchError) as caught:
        run(code, tmp_path)
    error, log = caught.value, tmp_path / "logs/worker-1.log"
    assert error.exit_code == status
    assert str(error).startswith("worker:1: ")
    assert said in str(error)
    assert str(error).endswith(f"log: {log}")
    assert error.tail == ("last words",)
    assert error.shown.endswith("[launcher] the last lines of worker:1:\n[launcher]   last words\n")
    assert [(each.task, each.asked) for each in error.exits] == [
        (Task("worker", 1), False),
        (Task("worker", 0), True),
    ]


def test_failures_are_counted_and_the_first_is_named(tmp_path):
    code = NAME + (
        "import signal, sys, time\nfrom pathlib import Path\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))\n"
        f"here = Path({str(tmp_path)!r})\n(here / f'ready-{{me}}').touch()\n"
        "while me == 'worker:1' and len(list(here.glob('ready-*'))) < 3: time.sleep(0.01)\n"
        "if me == 'worker:1': sys.exit(3)\ntime.sleep(600)"
    )
    with pytest.raises(
        LaunchError, match=r"worker:1: exited with 3 \(pid \d+\), the first of 3 failures; log: "
    ):
        run(code, tmp_path, ClusterConfig.local(workers=3))


def test_who_lingers_after_the_chief_is_ended_and_named(tmp_path):
    code = NAME + "import time\nif me != 'chief:0': time.sleep(600)"
    report, shown = run(code, tmp_path, ClusterConfig.local(workers=1, ps=1), linger=0.3)
    assert report.exits[0].task == ("chief", 0)
    assert {each.code for each in report.exits[1:]} == {-signal.SIGTERM}
    assert "chief:0 is done; worker:0, ps:0 did not end within 0.3 s: ending" in shown


def test_who_ends_within_the_grace_after_the_chief_is_left_alone(tmp_path):
    month = 30 * 86400.0  # more milliseconds than the system's poll takes at once
    report, _ = run(NAME + "import time\nif me != 'worker:0': time.sleep(0.5)", tmp_path, grace=month)
    assert [(each.code, each.asked) for each in report.exits] == [(0, False), (0, False)]


def test_a_failure_after_the_chief_is_a_failure(tmp_path):
    with pytest.raises(LaunchError, match="worker:1: exited with 7"):
        run(NAME + "import sys, time\nif me != 'worker:0': time.sleep(0.5); sys.exit(7)", tmp_path)


def test_what_a_shell_script_runs_may_save_its_work(tmp_path):
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    code = NAME + (
        "import signal, sys, time\nfrom pathlib import Path\n"
        f"ready, saved = Path({str(ready)!r}), Path({str(saved)!r})\n"
        "if me == 'worker:0':\n"
        "    while not ready.exists(): time.sleep(0.01)\n"
        "    sys.exit(5)\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), saved.touch(), sys.exit(138)))\n"
        "ready.touch()\ntime.sleep(600)"
    )
    (tmp_path / "train.py").write_text(code)
    script = tmp_path / "run.sh"
    script.write_text(f"{sys.executable} {tmp_path}/train.py\nstatus=$?\nexit $status\n")
    with pytest.raises(LaunchError, match="worker:0: exited with 5"):
        launch(
            ClusterConfig.local(workers=2),
            ["bash", str(script)],
            run_dir=tmp_path / "r",
            stream=io.StringIO(),
        )
    assert saved.exists()


# Timeout begins a process group; its command may save when the launcher sends SIGTERM.
GROUPS = {
    "one-group": "{python} {code}\nstatus=$?\nexit $status\n",
    "pipeline": "timeout 600 {python} {code} | cat\necho not reached\n",
    "background": "timeout 600 {python} {code} &\nsleep 600\n",
    "job-control": "set -m\n{python} {code} &\nwait\n",
}


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for the processes of a session")
@pytest.mark.parametrize("script", GROUPS.values(), ids=GROUPS)
def test_what_a_shell_script_saves_decides_its_status(tmp_path, script):
    code = (
        "import os, signal, sys, time\nfrom pathlib import Path\n"
        f"folder = Path({str(tmp_path)!r})\nsaved = folder / 'saved'\n"
        "def save(*_):\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"  # timeout may pass it on once more, at any time
        "    time.sleep(0.5); saved.touch(); sys.exit(138)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "Path(folder, 'ready').touch()\ntime.sleep(600)"
    )
    (tmp_path / "train.py").write_text(code)
    path = tmp_path / "run.sh"
    path.write_text(script.format(python=sys.executable, code=tmp_path / "train.py"))
    shell = f"import os; os.execvp('bash', ['bash', {str(path)!r}])"
    with started(driver(shell, tmp_path / "r", cluster={"workers": 1}, grace=600)) as launcher:
        until((tmp_path / "ready").exists, "it trains")
        launcher.send_signal(signal.SIGTERM)
        shown, errors = launcher.communicate(timeout=SECONDS)
    assert (launcher.returncode, (tmp_path / "saved").exists()) == (138, True), errors
    assert b"had to be killed" not in shown


# The command of a shell that has ended ends at the very moment at which the supervisor looks for it.
ENDS_MEANWHILE = """
import pathlib, sys, time
sys.path.append(sys.argv[1])
from supervisor import process_tree, supervisor
find_groups, folder = supervisor.groups_in_sessions, pathlib.Path({folder!r})
def find_late(leaders):
    if leaders:
        (folder / "looks").touch()
        while process_tree._stat(int((folder / "pid").read_text()))[0] != "Z":
            time.sleep(0.01)
    return find_groups(leaders)
supervisor.groups_in_sessions = find_late
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for the processes of a session")
def test_what_is_saved_while_the_supervisor_looks_for_it_decides_the_status_too(tmp_path):
    code = (
        "import os, signal, sys, time\nfrom pathlib import Path\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "def save(*_):\n"
        "    while not (folder / 'looks').exists(): time.sleep(0.01)\n"
        "    sys.exit(138)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "(folder / 'pid').write_text(str(os.getpid()))\n(folder / 'ready').touch()\ntime.sleep(600)"
    )
    (tmp_path / "train.py").write_text(code)
    script = f"{sys.executable} {tmp_path}/train.py\nexit $?\n"
    shell = f"import os; os.execvp('bash', ['bash', '-c', {script!r}])"
    command = driver(shell, tmp_path / "r", cluster={"workers": 1}, grace=600)
    command[2] = (
        "from tfdist.launcher import start_supervisor as it\n"
        f"it._SUPERVISOR_PROGRAM = {ENDS_MEANWHILE.format(folder=str(tmp_path))!r} + it._SUPERVISOR_PROGRAM\n"
    ) + command[2]
    with started(command) as launcher:
        until((tmp_path / "ready").exists, "it trains")
        launcher.send_signal(signal.SIGTERM)
        _, errors = launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 138, errors


def test_who_ignores_sigterm_is_killed(tmp_path):
    code = NAME + (
        "import signal, sys, time\nfrom pathlib import Path\n"
        f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\nready = Path({str(tmp_path / 'ready')!r})\n"
        "if me == 'worker:1': ready.touch()\n"
        "while not ready.exists(): time.sleep(0.01)\n"
        "if me == 'worker:0': sys.exit(5)\ntime.sleep(600)"
    )
    with pytest.raises(LaunchError, match="worker:0: exited with 5") as caught:
        run(code, tmp_path, grace=0.5)
    assert caught.value.exits[1].code == -signal.SIGKILL
    assert "worker:1 had to be killed (SIGKILL" in caught.value.shown


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["/nowhere/to/be found"], "'/nowhere/to/be found': No such file or directory"),
        (["no-such-program-anywhere"], "'no-such-program-anywhere': No such file or directory"),
        (["/etc/passwd"], "'/etc/passwd': Permission denied"),
        ([__file__], f"Permission denied. Write -- python {__file__}"),
        ([sys.executable, "-c", "\0"], "null byte"),
    ],
)
def test_a_command_that_cannot_be_started_is_the_users_mistake(tmp_path, command, reason):
    with pytest.raises(ConfigError, match="command: worker:0 cannot start ") as caught:
        launch(ClusterConfig.local(workers=2), command, run_dir=tmp_path, stream=io.StringIO())
    assert reason in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("command", [[], "python train.py"])
def test_a_command_is_a_list(tmp_path, command):
    with pytest.raises(ConfigError, match="expected a program and its arguments, in a list"):
        launch(ClusterConfig.local(), command, run_dir=tmp_path)


def test_only_a_cluster_of_this_machine_can_be_launched(tmp_path):
    with pytest.raises(
        ConfigError, match=r"received worker:1 at h2:2222\. Start each task on its own machine"
    ):
        launch(ClusterConfig(worker=("127.0.0.1:2222", "h2:2222")), ["true"], run_dir=tmp_path)
    with pytest.raises(ConfigError, match="without tasks"):
        launch(ClusterConfig(), ["true"], run_dir=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("run_dir", ["a-file", "/proc/none"])
def test_an_unwritable_run_dir_is_one_line_and_status_2(tmp_path, run_dir):
    (tmp_path / "a-file").write_text("")
    command = driver("print(1)", tmp_path / run_dir)
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("tfdist: run_dir: cannot write ")
    assert done.stderr.count("\n") == 1


def test_no_folder_for_temporary_files_is_one_line_and_status_2(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(
        StorageError, match=r"^temporary folder: cannot be made: .*set TMPDIR to a folder"
    ) as error:
        run("", tmp_path / "run")
    assert error.value.exit_code == 2


def test_a_log_is_added_to_and_only_the_new_lines_are_shown(tmp_path):
    run("print('first run')", tmp_path)
    with pytest.raises(LaunchError) as caught:
        run("import sys; print('second run'); sys.exit(1)", tmp_path)
    assert caught.value.exits[0].log.read_text() == "first run\nsecond run\n"
    assert caught.value.tail == ("second run",)
    assert "first run" not in caught.value.shown


def test_a_stream_that_fails_ends_all(tmp_path, nothing_left):  # noqa: F811
    class Failing(io.StringIO):
        def write(self, text):
            if "up" in text:
                raise RuntimeError("no paper")
            return len(text)

    with pytest.raises(RuntimeError, match="no paper"):
        launch(
            ClusterConfig.local(workers=2),
            [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"],
            run_dir=tmp_path,
            stream=Failing(),
        )
    assert not alive(nothing_left)


def test_two_launches_never_share_a_directory(tmp_path):
    with started(driver("import time; print('up', flush=True); time.sleep(600)", tmp_path)) as process:
        until(lambda: holds(tmp_path / "logs/worker-1.log", "up"), "the first is up")
        with pytest.raises(ConfigError, match=r"run_dir: another launch is writing .*/worker-0\.log"):
            run("print(1)", tmp_path)
        process.terminate()
        process.communicate(timeout=SECONDS)
    run("print(1)", tmp_path)


def test_nothing_of_a_launch_stays_in_the_process(tmp_path):
    def state():
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        return set(os.listdir("/proc/self/fd")), threading.active_count(), handlers

    cluster = ClusterConfig.local(workers=2)
    gc.collect()
    files, threads, handlers = state()
    for _ in range(3):
        run("print(1)", tmp_path, cluster)
        with pytest.raises(LaunchError):
            run("import sys; sys.exit(1)", tmp_path, cluster)
        with pytest.raises(ConfigError):
            launch(cluster, ["no-such-program-anywhere"], run_dir=tmp_path, stream=io.StringIO())
    left_files, left_threads, left_handlers = state()
    # Of earlier tests, some may end meanwhile.
    assert left_files <= files
    assert left_threads <= threads
    assert left_handlers == handlers


def test_a_launch_may_run_in_any_thread(tmp_path):
    reports = []
    threads = [
        threading.Thread(target=lambda i=i: reports.append(run("print(1)", tmp_path / str(i))[0]))
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert [len(report.exits) for report in reports] == [2, 2, 2]


def test_two_clusters_at_once_share_no_port(tmp_path):
    # Without private networks, each task binds its own port as TensorFlow does (all interfaces), and holds it.
    code = NAME + (
        "import socket, time\nspec = json.loads(os.environ['TF_CONFIG'])\n"
        "port = int(spec['cluster'][spec['task']['type']][spec['task']['index']].split(':')[1])\n"
        "server = socket.create_server(('0.0.0.0', port)); time.sleep(2)"
    )
    commands = [
        driver(code, tmp_path / str(i), cluster={"workers": 3, "ps": 2}, network_isolation="never")
        for i in range(2)
    ]
    pair = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for command in commands
    ]
    for each in pair:
        shown = each.communicate(timeout=SECONDS)[0].decode()
        assert each.returncode == 0, shown


def test_the_launcher_loads_no_tensorflow():
    code = "import sys, tfdist.launcher; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=SECONDS, text=True, check=True
    )
    assert not {"tensorflow", "keras", "numpy", "rich"} & set(done.stdout.split())


def test_the_supervisor_needs_the_standard_library_alone():
    import tfdist.launcher.supervisor as supervisor

    files = list(Path(supervisor.__file__).parent.glob("*.py"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    imported = {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert len(files) > 1
    assert imported - {""} <= sys.stdlib_module_names  # "": each other, by relative names


def test_a_command_may_take_tasks_to_other_machines(tmp_path):
    cluster = ClusterConfig(worker=["10.0.0.1:2222", "10.0.0.2:2222"])
    code = "import json, os; print(json.loads(os.environ['TF_CONFIG'])['cluster']['worker'])"
    report, shown = run(code, tmp_path, cluster, elsewhere=True, network_isolation="never")
    assert [task_exit.code for task_exit in report.exits] == [0, 0]
    assert "[worker:1] ['10.0.0.1:2222', '10.0.0.2:2222']" in shown
    assert "[launcher] 2 tasks on other machines; logs: " in shown
    assert "WARNING" not in shown
    with pytest.raises(ConfigError, match="expected a cluster on this machine"):
        run(code, tmp_path, cluster)
