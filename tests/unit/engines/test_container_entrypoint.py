"""What a container of a managed service does before and after the command of a task."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfdist.engines import restart_in_container
from tfdist.engines.config_in_variables import config_variables
from tfdist.engines.container_entrypoint import main
from tfdist.engines.job_description import Job
from tfdist.launcher.supervisor.restart_policy import Backoff

HOSTS = {
    "current_host": "algo-2",
    "current_group_name": "worker",
    "hosts": ["algo-1", "algo-2", "algo-3"],
    "instance_groups": [
        {"instance_group_name": "chief", "instance_type": "ml.m5.large", "hosts": ["algo-1"]},
        {"instance_group_name": "worker", "instance_type": "ml.m5.large", "hosts": ["algo-3", "algo-2"]},
    ],
    "network_interface_name": "eth0",
}


def start(*words, **variables):
    command = [sys.executable, "-m", "tfdist.engines.container_entrypoint", *words]
    environ = {**os.environ, **variables}
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*words, **variables):
    process = start(*words, **variables)
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


@pytest.fixture
def opt_ml(tmp_path):
    """Return the folder that is /opt/ml on SageMaker, and the variable that leads to it."""
    folder = tmp_path / "input" / "config"
    folder.mkdir(parents=True)
    (folder / "resourceconfig.json").write_text(json.dumps(HOSTS))
    return tmp_path, {"SM_INPUT_CONFIG_DIR": str(folder)}


def test_the_config_is_a_file_for_the_command(tmp_path):
    path = tmp_path / "cifar.yaml"
    path.write_text("# é\n" * 400)
    code = "import sys; print(sys.argv[1]); print(open(sys.argv[1]).read(), end='')"
    job = Job("x", command=(), counts={"worker": 1}, folder=tmp_path, made_by="", config=path)
    status, output, errors = run(sys.executable, "-c", code, "{config}", **config_variables(job))
    assert (status, errors) == (0, "")
    name, text = output.split("\n", 1)
    assert name.endswith("/cifar.yaml")
    assert text == path.read_text()


def test_on_sagemaker_the_command_gets_what_the_toolkit_would_set(opt_ml):
    folder, variables = opt_ml
    code = "import os, json; print(json.loads(os.environ['SM_RESOURCE_CONFIG'])['current_host'], os.environ['SM_MODEL_DIR'])"
    status, output, _ = run(sys.executable, "-c", code, **variables)
    assert status == 0
    assert output.splitlines() == ["tfdist: this container is worker:0", f"algo-2 {folder / 'model'}"]


@pytest.mark.parametrize(
    ("ending", "status", "starts"),
    [
        ("sys.exit(138)", 138, 3),
        ("os.kill(os.getpid(), 9)", 137, 3),
        ("sys.exit(-1)", 255, 1),  # no signal
        ("sys.exit(2)", 2, 1),
        ("sys.exit(0)", 0, 1),
    ],
)
def test_a_lost_command_is_started_again_while_restarts_are_left(opt_ml, ending, status, starts):
    folder, variables = opt_ml
    code = f"import os, sys; print('up', flush=True); {ending}"
    found, output, _ = run(sys.executable, "-c", code, TFDIST_RESTARTS="2", **variables)
    is_lost = starts > 1
    assert found == (1 if is_lost else status)
    assert output.count("up\n") == starts
    failure = folder / "output" / "failure"
    assert failure.exists() == (status != 0)
    if status:
        end = f"ended with {status}, and no restart is left" if is_lost else f"exited with {status}"
        assert failure.read_text().endswith(end)


def test_the_output_of_a_killed_command_is_not_lost(monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    code = "import os; print('last words'); os.kill(os.getpid(), 9)"
    assert run(sys.executable, "-c", code)[1] == "last words\n"
    code = "import os; print([os.environ[name] for name in ('PYTHONUNBUFFERED', 'PYTHONFAULTHANDLER')])"
    assert run(sys.executable, "-c", code, PYTHONFAULTHANDLER="")[1] == "['1', '']\n"


# Each start of the command lasts for no time, and saves a checkpoint as often as it is told to.
SAVING = """
import os, pathlib, sys
from tfdist.launcher.progress_for_engines import write_saved_step
count = pathlib.Path(sys.argv[1])
starts = int(count.read_text() if count.exists() else 0) + 1
count.write_text(str(starts))
if starts < 5:
    write_saved_step(10 * starts)
sys.exit(138)
"""


@pytest.mark.parametrize(
    ("task", "starts"),
    [({"type": "chief", "index": 0}, 6), ({"type": "worker", "index": 0}, 3)],
)
def test_a_new_checkpoint_renews_the_restarts_of_the_chief(tmp_path, monkeypatch, capfd, task, starts):
    monkeypatch.setattr(Backoff, "pause_after", lambda *_: 0.0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    cluster = {"chief": ["a:1"], "worker": ["b:1"]}
    variables = {"TFDIST_RESTARTS": "2", "TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
    command = [sys.executable, "-c", SAVING, str(tmp_path / "count")]
    assert main(command, {**os.environ, **variables}) == 1
    # The chief has saved in four of them: two more restarts follow the last checkpoint.
    assert (tmp_path / "count").read_text() == str(starts)
    printed = capfd.readouterr().out
    assert f"tfdist: the command ended with 138: start {starts} in 0 s\n" in printed
    assert printed.endswith("tfdist: the command ended with 138, and no restart is left\n")


def test_a_new_checkpoint_renews_the_restarts_of_all_who_see_it(tmp_path, monkeypatch):
    monkeypatch.setattr(Backoff, "pause_after", lambda *_: 0.0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    task = {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}
    variables = {
        "TFDIST_RESTARTS": "2",
        "TFDIST_SAVED_STEP_FILE": str(tmp_path / "saved_step"),
        "TFDIST_PROGRESS_FILE": str(tmp_path / "progress.json"),  # this worker saves in place of its chief
        "TF_CONFIG": json.dumps(task),
    }
    command = [sys.executable, "-c", SAVING, str(tmp_path / "count")]
    assert main(command, {**os.environ, **variables}) == 1
    assert (tmp_path / "count").read_text() == "6"


@pytest.mark.parametrize(("task", "has_file"), [("chief", True), ("worker", False)])
def test_the_chief_alone_writes_its_progress_into_the_run(tmp_path, monkeypatch, capfd, task, has_file):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    tf_config = {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": task, "index": 0}}
    saved = tmp_path / "new" / "logs" / "saved_step"
    variables = {"TFDIST_SAVED_STEP_FILE": str(saved), "TF_CONFIG": json.dumps(tf_config)}
    code = "import os; print(os.environ.get('TFDIST_PROGRESS_FILE')); assert os.environ['TFDIST_ENGINE']"
    assert main([sys.executable, "-c", code], {**os.environ, **variables}) == 0
    assert capfd.readouterr().out == (f"{saved.with_name('progress.json')}\n" if has_file else "None\n")
    assert saved.parent.is_dir() == has_file


SECRET = 16 * "s"
MARK = hashlib.sha256(b"chief ended" + SECRET.encode()).hexdigest()
WAITS_FOR_ITS_CHIEF = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(138)); time.sleep(600)"


def a_task(folder, task):
    """Return the variables of a task whose container sees the file of the chief's last checkpoint."""
    cluster = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
    return {
        **os.environ,
        "TFDIST_RESTARTS": "2",
        "TFDIST_SAVED_STEP_FILE": str(folder / "saved_step"),
        "TFDIST_SECRET": SECRET,
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task, "index": 0}}),
    }


@pytest.mark.parametrize(("status", "is_marked"), [(0, True), (2, False), (138, False)])
def test_the_chiefs_container_marks_its_clean_end_alone(tmp_path, monkeypatch, status, is_marked):
    monkeypatch.setattr(Backoff, "pause_after", lambda *_: 0.0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    mark = tmp_path / "chief_ended"
    mark.touch()  # of an end before
    code = f"import os, sys; assert not os.path.exists({str(mark)!r}); sys.exit({status})"
    main([sys.executable, "-c", code], a_task(tmp_path, "chief"))
    assert mark.exists() == is_marked
    assert not is_marked or mark.read_text() == MARK


@pytest.mark.parametrize("task", ["worker", "ps"])
def test_a_task_that_starts_after_the_chiefs_clean_end_does_not_wait_for_it(tmp_path, monkeypatch, task):
    monkeypatch.setattr(restart_in_container, "_SECONDS_TO_END_BY_ITSELF", 0.0)
    monkeypatch.setattr(restart_in_container, "_SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "chief_ended").write_text(MARK)
    assert main([sys.executable, "-c", WAITS_FOR_ITS_CHIEF], a_task(tmp_path, task)) == 0


def test_a_lost_task_is_not_started_again_after_the_chiefs_clean_end(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "chief_ended").write_text(MARK)
    code = "import os; print('up', flush=True); os.kill(os.getpid(), 9)"
    assert main([sys.executable, "-c", code], a_task(tmp_path, "worker")) == 0
    assert capfd.readouterr().out == "up\ntfdist: the command ended with 137 after the chief has ended\n"


@pytest.mark.parametrize("mark", ["", hashlib.sha256(b"of another job").hexdigest()])
def test_the_mark_of_an_earlier_job_in_the_same_folder_ends_nothing(tmp_path, monkeypatch, capfd, mark):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(Backoff, "pause_after", lambda *_: 0.0)
    (tmp_path / "chief_ended").write_text(mark)
    assert main([sys.executable, "-c", "raise SystemExit(138)"], a_task(tmp_path, "worker")) == 1
    assert "start 3 in 0 s\n" in capfd.readouterr().out


def test_a_mistake_after_the_chiefs_clean_end_stays_one(tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "chief_ended").write_text(MARK)
    assert main([sys.executable, "-c", "raise SystemExit(2)"], a_task(tmp_path, "worker")) == 2


def test_without_a_number_of_restarts_the_status_is_that_of_the_command(monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert "TFDIST_RESTARTS" not in os.environ
    assert main([sys.executable, "-c", "raise SystemExit(138)"], os.environ) == 138


def test_a_task_that_has_run_for_long_has_all_restarts_again(tmp_path, monkeypatch):
    lives = iter([100.0, 100.0, 100.0, 1.0, 1.0, 1.0])
    now = [0.0]

    def run_once(self):
        now[0] += next(lives)
        return 138

    monkeypatch.setattr(restart_in_container.RestartedCommand, "_run_once", run_once)
    monkeypatch.setattr(restart_in_container.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Backoff, "pause_after", lambda *_: 0.0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert restart_in_container.RestartedCommand(["x"], {"TFDIST_RESTARTS": "2"}).run(2)[0] == 1
    assert list(lives) == [1.0]  # two restarts after the last long life


def test_a_reason_that_the_command_has_written_is_kept(opt_ml):
    folder, variables = opt_ml
    (folder / "output").mkdir()
    path = folder / "output" / "failure"
    path.write_text("that of a start before")
    code = f"import sys; assert not open({str(path)!r}, 'x').write('mine') - 4; sys.exit(2)"
    assert run(sys.executable, "-c", code, **variables)[0] == 2
    assert path.read_text() == "mine"


def test_a_command_that_was_told_to_end_is_not_started_again(tmp_path):
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(138)); print('up', flush=True); time.sleep(99)"
    process = start(sys.executable, "-c", code, TFDIST_RESTARTS="2")
    while process.stdout.readline() != "up\n":
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (138, "")


SAVES = """
import signal, sys, time

def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # timeout may pass it on once more, at any time
    time.sleep(1)
    print("saved", flush=True)
    sys.exit(138)

signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(99)
"""


@pytest.mark.parametrize(
    ("shell", "script"),
    [
        ("sh", "{command}\necho not reached\n"),
        ("bash", "{command}\necho not reached\n"),
        # Timeout begins a process group.
        ("bash", "timeout 600 {command} &\nwait\n"),
        (
            "bash",
            "(trap 'exit 0' TERM; while :; do sleep 0.1; done) 2> /dev/null & timeout 600 {command} & wait\n",
        ),
    ],
)
def test_what_a_shell_script_runs_may_save_its_work(tmp_path, shell, script):
    (tmp_path / "train.py").write_text(SAVES)
    path = tmp_path / "run.sh"
    path.write_text(script.format(command=f"{sys.executable} {tmp_path}/train.py"))
    process = start(shell, str(path), TFDIST_RESTARTS="2")
    while process.stdout.readline() != "up\n":
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (138, "saved\n", "")


def test_a_shell_script_that_a_signal_ends_has_not_succeeded(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text("(trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done) 2> /dev/null & wait\n")
    process = start("bash", str(path))
    while process.stdout.readline() != "up\n":
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (128 + signal.SIGTERM, "", "")


def test_what_an_ended_command_has_left_is_killed():
    status, output, errors = run("sh", "-c", "sleep 99 > /dev/null 2>&1 & echo $!")
    assert (status, errors) == (0, "")
    while Path("/proc", output.strip()).exists():  # until it is reaped
        time.sleep(0.1)


def test_a_mistake_is_one_line():
    assert run() == (2, "", "tfdist: tfdist.engines.container_entrypoint: needs a command\n")
    status, _, errors = run("no_such_command")
    assert status == 2
    assert errors == "tfdist: 'no_such_command': No such file or directory. Install it in the image\n"


def test_a_checkpoint_that_cannot_be_read_now_renews_nothing(tmp_path):
    path = tmp_path / "saved_step"
    task = restart_in_container.RestartedCommand(["x"], {"TFDIST_SAVED_STEP_FILE": str(path)})
    assert task._saved("5") == "5"
    path.mkdir()
    assert task._saved("5") == "5"
    path.rmdir()
    path.write_text("6\n")
    assert task._saved("5") == "6\n"


def test_an_evaluator_neither_marks_the_end_nor_takes_the_chiefs_mark_away(tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    mark = tmp_path / "chief_ended"
    assert main([sys.executable, "-c", ""], a_task(tmp_path, "evaluator")) == 0
    assert not mark.exists()
    mark.touch()
    main([sys.executable, "-c", ""], a_task(tmp_path, "evaluator"))
    assert mark.exists()
