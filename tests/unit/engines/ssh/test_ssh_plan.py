"""`tfdist submit ssh` without a host: which tasks go where, what the shell of a host gets, and a task on a host."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import tfdist
from tfdist.engines.job_description import CONFIG, PYTHON, RUN_DIR, Job
from tfdist.engines.ssh.check_hosts import FoundHost, check_hosts
from tfdist.engines.ssh.engine import Ssh, plan_of
from tfdist.engines.ssh.launch import cluster_on
from tfdist.engines.ssh.plan_file import NO_FOLDER, NO_PYTHON, NO_SETUP, Order, Plan
from tfdist.errors import ConfigError
from tfdist.launcher.report_messages import Silence, read_reports
from tfdist.launcher.run_events import Progressed
from tfdist.trainer.config import read_config
from tfdist.trainer.sections.engine import EngineSection, SshSection

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="ssh is not found")
HOSTS = ["node1", "me@node2"]
SECONDS = 300  # a busy machine is no failure


def job(**section):
    return Job(
        name="x",
        command=("true",),
        counts={"chief": 1, "worker": 2, "ps": 1},
        folder=Path.cwd() / "runs",
        made_by="tfdist submit ssh",
        section=EngineSection(ssh=SshSection(**section)),
    )


def plan(**changes):
    values = {
        "python": sys.executable,
        "folder": "/",
        "runs": "/runs",
        "command": ["true"],
        "restarts": 3,
        "grace": 30.0,
    }
    addresses = {"node1": "node1", "me@node2": "fe80::2"}
    tasks = {"chief:0": "node1", "ps:0": "me@node2", "worker:0": "node1"}
    return Plan(**{**values, "tasks": tasks, "addresses": addresses, "ssh": ["ssh"], **changes})


@needs_ssh
@pytest.mark.parametrize(
    ("options", "seconds"), [({}, 45.0), ({"grace": "300"}, 300.0)], ids=["config", "option"]
)
def test_tasks_have_the_grace_of_the_config_or_of_the_engine(options, seconds):
    assert plan_of(replace(job(hosts=HOSTS), grace=45.0), options).grace == seconds


@needs_ssh
@pytest.mark.parametrize(
    ("hosts", "options", "wanted"),
    [
        (HOSTS, {}, ["node1", "me@node2", "node1", "me@node2"]),
        (["node1"], {"hosts": "node2,node2,node3"}, ["node2", "node2", "node3", "node2"]),
        ({"worker": ["node1", "node2"], "ps": ["node3"]}, {}, ["node1", "node3", "node1", "node2"]),
        ([], {"worker:hosts": "node1", "ps:hosts": "node2"}, ["node1", "node2", "node1", "node1"]),
    ],
)
def test_tasks_are_dealt_to_the_hosts_in_turn(hosts, options, wanted):
    dealt = plan_of(job(hosts=hosts), options).tasks
    assert list(dealt) == ["chief:0", "ps:0", "worker:0", "worker:1"]
    assert list(dealt.values()) == wanted


@needs_ssh
def test_options_are_those_of_ssh_by_their_names(tmp_path, monkeypatch):
    section = {"hosts": HOSTS, "options": {"Port": 1, "User": "x"}, "setup": ["a"], "folder": "/there"}
    made = plan_of(
        job(**section), {"Port": "2022", "HostName": "10.0.0.7", "restarts": "0", "setup": "é😀\nb"}
    )
    assert made.ssh[:3] == ["ssh", "-oBatchMode=yes", "-oControlMaster=no"]
    words = [*made.ssh, "-oControlPath=/run/x", "-oLocalForward=1 a:2", "-G", "node1"]
    settings = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert not [line for line in settings if line.startswith(("controlpath", "localforward"))]
    assert {"controlmaster false", "clearallforwardings yes"} < set(settings)
    shared = plan_of(job(hosts=HOSTS), {"ControlPath": "/run/x"}).ssh
    assert shared.index("-oControlPath=/run/x") < shared.index("-oControlPath=none")  # ssh takes the first
    assert {"-oPort=2022", "-oUser=x"} < set(made.ssh)
    assert (made.restarts, made.setup, made.runs) == (0, ["a", "é😀", "b"], "/there/runs")
    assert set(made.addresses.values()) == {"10.0.0.7"}  # by which ssh itself would reach them
    one = job(**section)
    monkeypatch.chdir(tmp_path)  # the folder of runs is not in it
    assert plan_of(one, {}).runs == str(one.folder)
    assert plan_of(replace(one, address="gs://b/runs"), {}).runs == "gs://b/runs"
    assert plan_of(job(hosts=HOSTS), {}).folder == str(tmp_path)


@needs_ssh
@pytest.mark.parametrize(
    ("hosts", "options", "message"),
    [
        ([], {}, "engine.ssh.hosts: names no host. Name them: "),
        (["-oProxyCommand=x"], {}, "engine.ssh.hosts: expected a name that ssh takes"),
        ({"boss": ["node1"]}, {}, "engine.ssh.hosts: expected roles of the job (chief, ps, worker), received 'boss'"),
        (HOSTS, {"folder": "~/x"}, "engine.ssh.folder: expected an absolute path on the hosts, received '~/x'"),
        (HOSTS, {"host": "a"}, "--option host=a: host: unknown key. Did you mean 'hosts'?"),
        (HOSTS, {"restarts": "many"}, "--option restarts=many: restarts: expected a whole number, received 'many'"),
        (["node1", "localhost"], {}, "engine.ssh.hosts: localhost is at localhost, where the other hosts do not reach it. "),
        (["me@127.0.0.2", "node1"], {}, "engine.ssh.hosts: me@127.0.0.2 is at 127.0.0.2, where the other"),
        (HOSTS, {"Porrt": "1"}, "ssh node1: command-line: line 0: Bad configuration option: porrt"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_option_is_one_line(hosts, options, message):
    with pytest.raises(ConfigError) as caught:
        Ssh().render(job(hosts=hosts), options)
    assert str(caught.value).startswith(message)


@needs_ssh
def test_the_script_has_the_plan():
    script = Ssh().render(job(hosts=HOSTS), {})
    text = script.partition("<< 'END OF PLAN'\n")[2].partition("\nEND OF PLAN\n")[0]
    assert msgspec.json.decode(text, type=Plan) == plan_of(job(hosts=HOSTS), {})
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_tasks_of_one_host_have_ports_of_their_own():
    cluster = cluster_on(plan(), {"node1": [1, 2], "me@node2": [3]})
    assert cluster.tf_config()["cluster"] == {
        "chief": ["node1:1"],
        "worker": ["node1:2"],
        "ps": ["[fe80::2]:3"],
    }


def on_host(made, *words, **options):
    """Run in a shell of this machine what the shell of a host would run."""
    command = made.words_for("node1", *words)[-1]
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, **options, check=False)


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    """Keep what the user's own profile prints and sets out of login shells."""
    monkeypatch.setenv("HOME", str(tmp_path))


def test_the_shell_of_a_host_finds_folder_and_python(tmp_path):
    folder = tmp_path / "it's a $HOME"
    assert on_host(plan(folder=str(folder)), "check", "1").returncode == NO_FOLDER
    folder.mkdir()
    assert on_host(plan(folder=str(folder), python="/no/python"), "check", "1").returncode == NO_PYTHON
    done = on_host(plan(folder=str(folder), setup=["echo 'a b' > made"]), "check", "2")
    found = msgspec.json.decode(done.stdout, type=FoundHost)
    assert found.tfdist == tfdist.__version__
    assert len(set(found.ports)) == 2
    assert (folder / "made").read_text() == "a b\n"


def test_setup_runs_in_a_login_shell_of_bash_and_must_succeed(tmp_path):
    (tmp_path / ".bash_profile").write_text("module() { echo $* > loaded; [ $1 = load ]; }\n")
    lines = ["module load cuda", "source /dev/null", "export A='b  c'", 'cat; echo "$A" > made']
    done = on_host(plan(folder=str(tmp_path), setup=lines), "check", "1", input="x")
    assert (done.returncode, done.stderr) == (0, "")
    assert ((tmp_path / "loaded").read_text(), (tmp_path / "made").read_text()) == ("load cuda\n", "b  c\n")
    done = on_host(plan(folder=str(tmp_path), setup=["module lod cuda", "true"]), "check", "1")
    assert (done.returncode, done.stderr) == (NO_SETUP, "module lod cuda: status 1\n")


def test_versions_that_differ_are_named(tmp_path):
    stand_in = tmp_path / "ssh"  # which runs on this machine what it is told to run on a host
    stand_in.write_text('#!/bin/sh\nHOST=$2 exec sh -c "$3"\n')
    stand_in.chmod(0o755)
    python = tmp_path / "python"
    answer = {"tfdist": tfdist.__version__, "tensorflow": "2.20.0", "keras": "3.0", "ports": [1]}
    python.write_text(
        f"#!/bin/sh\nif [ $HOST = node1 ]; then v=2.20.0; else v=2.21.0; fi\n"
        f"echo 'noise'; echo '{json.dumps(answer)}' | sed s/2.20.0/$v/\n"
    )
    python.chmod(0o755)
    hosts, problems = check_hosts(plan(ssh=[str(stand_in)], python=str(python)))
    assert list(hosts) == ["node1", "me@node2"]
    assert list(map(str, problems)) == [
        "me@node2: expected tensorflow 2.20.0, that of node1, received 2.21.0. Install the same version everywhere"
    ]


@needs_ssh
def test_the_launcher_of_one_task_does_not_print_into_the_log_that_it_reads():
    one = replace(job(hosts=["node1"]), counts={"worker": 1}, is_single=True)
    assert '>> "$run_dir/logs/launcher.log" 2>&1' in Ssh().render(one, {})


class OnHost:
    """Run a task as a host does whose connection is this process."""

    def __init__(self, *command, config=None, is_single=False, index=1):
        order = Order(
            plan=plan(
                command=command,
                config_name="c.yaml",
                config=config,
                tasks={"worker:0": "host0", "worker:1": "host1"},
                addresses={"host0": "a", "host1": "b"},
                threads=5,
                is_single=is_single,
            ),
            run_dir="/runs/x-1",
            task=f"worker:{index}",
            tf_config=json.dumps(
                {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": index}}
            ),
            secret="the secret of all tasks",
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tfdist.engines.ssh.task_on_host", "run"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.process.stdin.write(msgspec.json.encode(order).decode() + "\n")
        self.process.stdin.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(SECONDS)
        self.process.stdout.close()
        self.process.stderr.close()

    def end(self):
        """Return the rest of the output, and the exit status."""
        return self.process.stdout.read(), self.process.wait(SECONDS)


def test_a_task_has_its_cluster_its_secret_and_its_config():
    command = "echo $TFDIST_SECRET $TF_CONFIG $no_grpc_proxy $OMP_NUM_THREADS; python -c 'import sys; print(sys.executable)'"
    command += '; stat -c %a "$1"; cat "$1"; echo "$2"'
    with OnHost("sh", "-c", command, PYTHON, CONFIG, RUN_DIR, config="a: 1\n") as task:
        output, status = task.end()
    first, python, *rest = output.splitlines()
    assert first.startswith('the secret of all tasks {"cluster": {"worker": ["a:1", "b:2"]}, "task": ')
    assert first.endswith(",a,b 5")
    assert Path(python).parent == Path(sys.executable).parent
    assert (rest, status) == (["600", "a: 1", "/runs/x-1"], 0)


def test_a_process_without_a_cluster_gets_none():
    with OnHost("sh", "-c", "echo ${TF_CONFIG-none}", is_single=True) as task:
        assert task.end() == ("none\n", 0)


@pytest.mark.parametrize(("index", "is_heard"), [(0, True), (1, False)])
def test_the_reports_of_the_lead_come_back(index, is_heard):
    program = "from tfdist.launcher import report_progress, report_silent; report_progress(3, 10, loss=0.5); "
    program += "print(report_silent('worker:1', 30.0)); import time; time.sleep(1)"
    with OnHost("python", "-c", program, index=index) as task:
        output, status = task.end()
        reports = list(read_reports(task.process.stderr.read().encode()))
    assert (output, status) == (f"{is_heard}\n", 0)
    assert reports == ([Progressed(3, 10, None, 0.5), Silence("worker:1", 30.0)] if is_heard else [])


@pytest.mark.parametrize(
    ("ending", "status"), [("exit 3", 3), ("exit 138", 138), ("kill -9 $$", 138), ("exit 255", 1)]
)
def test_the_exit_status_is_that_of_the_task(ending, status):
    with OnHost("sh", "-c", ending) as task:
        output, received = task.end()
    assert received == status
    assert ("ended by signal 9" in output) == ("kill" in ending)


def test_a_command_that_does_not_exist_is_one_line():
    with OnHost("/no/such") as task:
        output, status = task.end()
    assert output == "tfdist: command: worker:1 cannot start '/no/such': No such file or directory\n"
    assert status == 2


def test_a_task_that_is_told_to_end_saves_its_work():
    with OnHost(
        "bash", "-c", "trap 'echo saved; exit 138' TERM; echo up; while true; do sleep 0.1; done"
    ) as task:
        assert task.process.stdout.readline() == "up\n"
        task.process.stdin.write("\nend\n")
        task.process.stdin.flush()
        output, status = task.end()
    assert output.endswith("saved\n")
    assert status == 138


def test_all_that_a_task_has_started_ends_with_the_connection():
    with OnHost("bash", "-c", "trap '' TERM; setsid sleep 600 & echo $!; wait") as task:
        orphan = int(task.process.stdout.readline())
        os.kill(orphan, 0)  # it is there
        task.process.stdin.close()
        assert task.process.wait(SECONDS) == 138
    deadline = time.monotonic() + SECONDS
    while Path(f"/proc/{orphan}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_holder_of_the_connection_ends_the_task():
    with OnHost("sh", "-c", "echo $$; exec sleep 600") as task:
        pid = int(task.process.stdout.readline())
        task.process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + SECONDS
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)


@needs_ssh
def test_the_config_of_the_page_is_right(tmp_path):
    page = Path(__file__).parents[4] / "docs" / "engines" / "ssh.md"
    [block] = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    (tmp_path / "hosts.yaml").write_text(block)
    section = read_config(tmp_path / "hosts.yaml").config.engine.ssh
    made = plan_of(job(**msgspec.structs.asdict(section)), {})
    assert made.python == "/home/me/tfdist/.venv/bin/python"
    assert list(made.tasks.values()) == ["node1", "node2", "node3", "node1"]
