"""The script for sbatch that tfdist writes: what it asks for, and what shells make of odd words."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tfdist.engines.job_description import CONFIG, PYTHON, RUN_DIR, Job
from tfdist.engines.job_handle_and_state import Handle, State
from tfdist.engines.slurm import script as script_module
from tfdist.engines.slurm.engine import Slurm
from tfdist.errors import ConfigError
from tfdist.trainer.config import read_config
from tfdist.trainer.sections.engine import EngineSection, SlurmSection


def job(*command, counts=None, alone=(), **section):
    return Job(
        name="x",
        command=command or ("true",),
        counts=counts or {"chief": 1, "worker": 2, "ps": 1},
        folder=Path("/shared/my runs"),
        made_by="tfdist submit slurm",
        section=EngineSection(slurm=SlurmSection(**section)),
        alone=alone,
    )


def test_a_job_that_must_not_be_requeued_is_not(tmp_path):
    assert "--requeue" in directives(Slurm().render(job(), {}))
    assert directives(Slurm().render(job(), {"requeue": ""})).count("--requeue") == 1
    script = Slurm().render(job(), {"no-requeue": ""})
    assert "--no-requeue" in directives(script)
    assert "--requeue" not in directives(script)
    assert run(script, tmp_path, "exit 138").stdout == ""


def test_the_tasks_get_the_variables_of_the_script_whatever_sbatch_exports(tmp_path):
    done = run(Slurm().render(job(), {"export": "NONE"}), tmp_path, "echo $SLURM_EXPORT_ENV")
    assert done.stdout == "ALL\n"


@pytest.mark.parametrize("alone", [(), ("worker", "evaluator")])
def test_a_shell_can_read_the_script_and_its_fixed_part(alone):
    fixed = Path(script_module.__file__).with_name("batch.sh").read_text()
    script = Slurm().render(job("it's", alone=alone), {"worker:cpus-per-task": "8"})
    assert script.endswith(fixed)
    for text in (fixed, script):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def directives(script):
    return re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE)


def test_there_is_a_slurm_task_for_each_task_of_the_cluster():
    script = Slurm().render(job(), {})
    assert "--ntasks=4" in directives(script)
    assert "export TFDIST_ROLES=chief=1,ps=1,worker=2\n" in script
    assert "het" not in "".join(directives(script))


def test_options_of_the_config_and_of_the_command_line_pass_through():
    script = Slurm().render(job(sbatch={"time": 60, "partition": "a"}), {"partition": "b", "exclusive": ""})
    assert {"--time=60", "--partition=b", "--exclusive"} < set(directives(script))
    assert "--partition=a" not in directives(script)
    assert "--signal=USR1@60" in directives(Slurm().render(job(), {"signal": "USR1@60"}))  # in place of ours
    assert "--signal=TERM@90" not in directives(Slurm().render(job(), {"signal": "USR1@60"}))


def test_each_job_of_an_array_has_messages_under_its_name():
    assert "--output=slurm-%j.out" in directives(Slurm().render(job(), {}))
    assert "--output=slurm-%A_%a.out" in directives(Slurm().render(job(), {"array": "0-3"}))
    options = {"array": "0-3", "output": "x.out"}
    assert "--output=x.out" in directives(Slurm().render(job(), options))


def test_roles_with_options_of_their_own_are_components_in_the_order_of_ranks():
    script = Slurm().render(
        job(sbatch={"worker:gres": "gpu:1", "time": 5}), {"chief:mem": "1G", "ps:mem": "1G"}
    )
    first, second = "\n".join(directives(script)).split("hetjob\n")
    assert {"--ntasks=2", "--mem=1G", "--time=5"} < set(first.split("\n"))
    assert second.split("\n") == ["--ntasks=2", "--time=5", "--gres=gpu:1"]
    assert 'srun --het-group=0 --kill-on-bad-exit=0 "${task[@]}" : --het-group=1 --kill' in script


def test_options_of_the_step_and_the_interpreter_of_a_container():
    one = job(PYTHON, "-m", "tfdist", srun={"container-image": "a b.sqsh", "label": ""}, python="python3")
    script = Slurm().render(one, {})
    assert "srun --kill-on-bad-exit=0 --container-image='a b.sqsh' --label " in script
    assert "\ncommand=(python3 -m tfdist)\n" in script
    both = Slurm().render(one, {"ps:mem": "1G"})
    assert both.count("--container-image") == len(re.findall("--het-group", both)) > 1
    with pytest.raises(ConfigError, match=r"engine\.slurm\.srun: expected a long option"):
        Slurm().render(job(srun={"-l": ""}), {})


def test_keys_of_the_section_are_options_too():
    options = {"setup": "module load a\nmodule load b", "python": "py 3", "restarts": "2", "srun.label": ""}
    script = Slurm().render(job(PYTHON, setup=["first"]), {**options, "partition": "gpu"})
    assert "\nfirst\nmodule load a\nmodule load b\n" in script
    assert "\ncommand=('py 3')\n" in script
    assert "\nmost_restarts=2\n" in script
    assert "srun --kill-on-bad-exit=0 --label " in script
    assert directives(script)[-1] == "--partition=gpu"
    with pytest.raises(ConfigError, match="--option restarts=x"):
        Slurm().render(job(), {"restarts": "x"})


def test_a_component_gets_its_own_cores_for_each_task():
    script = Slurm().render(job(), {"worker:cpus-per-task": "8", "mem": "1G"})
    [step] = re.findall(r"^ *srun .*$", script, re.MULTILINE)
    assert re.findall("--cpus-per-task=([0-9]+)", step) == ["1", "8"]


@pytest.mark.parametrize(
    ("threads", "variables", "wanted"),
    [
        (None, {}, "-,-"),
        (None, {"SLURM_CPUS_PER_TASK": "4"}, "4,4"),
        (2, {"SLURM_CPUS_PER_TASK": "4"}, "2,2"),
        (2, {"OMP_NUM_THREADS": "3"}, "3,2"),
    ],
)
def test_a_task_has_the_threads_of_the_config_or_of_its_cores(tmp_path, threads, variables, wanted):
    command = ["bash", "-c", "echo ${OMP_NUM_THREADS:--},${TF_NUM_INTRAOP_THREADS:--},$TFDIST_ENGINE"]
    script = Slurm().render(replace(job(*command), threads=threads), {})
    done = run(script, tmp_path, 'while [ "$1" != bash ]; do shift; done; "$@"', **variables)
    assert done.returncode == 0
    assert (tmp_path / "my runs" / "x-7" / "logs" / "rank-2.log").read_text() == f"{wanted},1\n"


@pytest.mark.parametrize(("variables", "wanted"), [({}, "1,1"), ({"PYTHONUNBUFFERED": ""}, ",1")])
def test_the_output_of_a_killed_task_is_not_lost(tmp_path, variables, wanted):
    script = Slurm().render(job("sh", "-c", "echo $PYTHONUNBUFFERED,$PYTHONFAULTHANDLER"), {})
    run(script, tmp_path, 'while [ "$1" != bash ]; do shift; done; "$@"', **variables)
    assert (tmp_path / "my runs" / "x-7" / "logs" / "rank-2.log").read_text() == f"{wanted}\n"


@pytest.mark.parametrize(
    ("rank", "variables", "options", "seen"),
    [
        # Ranks: chief:0, ps:0, worker:0, worker:1. All are on one node.
        ("2", {"SLURM_GTIDS": "0,1,2,3", "SLURM_LOCALID": "2"}, {}, "0,1 -"),
        ("3", {"SLURM_GTIDS": "0,1,2,3", "SLURM_LOCALID": "3"}, {}, "2,3 -"),
        ("0", {"SLURM_GTIDS": "0,1,2,3", "SLURM_LOCALID": "0"}, {}, "-1 -"),
        ("1", {"SLURM_GTIDS": "0,1,2,3", "SLURM_LOCALID": "1"}, {}, "-1 -"),
        # A worker has a node of its own, or a component, within which ranks are numbered.
        ("3", {"SLURM_GTIDS": "3", "SLURM_LOCALID": "0"}, {}, "0,1,2,3 -"),
        ("3", {"SLURM_GTIDS": "0,1", "SLURM_LOCALID": "1"}, {}, "2,3 -"),
        # More tasks than GPUs.
        ("3", {"SLURM_GTIDS": "2,3", "SLURM_LOCALID": "1", "CUDA_VISIBLE_DEVICES": "5"}, {}, "5 true"),
        # Each task has its own.
        ("0", {"SLURM_GTIDS": "0,1,2,3", "SLURM_LOCALID": "0"}, {"gpus-per-task": "4"}, "0,1,2,3 -"),
        ("2", {"SLURM_GTIDS": "2,3", "SLURM_LOCALID": "0", "SLURM_GPUS_PER_TASK": "4"}, {}, "0,1,2,3 -"),
        # None of the tasks on the node computes: these GPUs are theirs.
        ("1", {"SLURM_GTIDS": "0,1", "SLURM_LOCALID": "1"}, {}, "0,1,2,3 -"),
        # There are none.
        ("2", {"SLURM_GTIDS": "2,3", "SLURM_LOCALID": "0", "CUDA_VISIBLE_DEVICES": ""}, {}, " -"),
    ],
)
def test_the_tasks_of_a_node_divide_its_gpus(tmp_path, rank, variables, options, seen):
    command = ["bash", "-c", "echo $CUDA_VISIBLE_DEVICES ${TF_FORCE_GPU_ALLOW_GROWTH:--}"]
    script = Slurm().render(job(*command), options)
    variables = {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_PROCID": rank, **variables}
    done = run(script, tmp_path, 'while [ "$1" != bash ]; do shift; done; "$@"', **variables)
    assert done.stderr == ""
    log = tmp_path / "my runs" / "x-7" / "logs" / f"rank-{rank}.log"
    assert log.read_text().split() == seen.split()


def test_the_tasks_that_compute_are_workers_or_those_who_have_no_servers():
    assert job().computing_roles == ("worker",)
    assert job(counts={"chief": 1, "worker": 2, "evaluator": 1}).computing_roles == ("chief", "worker")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"Gpu": "1"}, "--sbatch: expected a long option and its value, such as partition=gpu, received 'Gpu'"),
        ({"boss:mem": "1"}, "--sbatch: expected a role of the job (chief, ps, worker) before the colon, received 'boss:mem'"),
        ({"comment": "a\n#SBATCH --uid=0"}, "--sbatch comment: expected one line, received"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_option_is_one_line(options, message):
    with pytest.raises(ConfigError) as caught:
        Slurm().render(job(), options)
    assert str(caught.value).startswith(message)


def run(script, folder, srun, scontrol='echo "scontrol $*"', **variables):
    """Run the script with an srun and an scontrol of our own in the place of Slurm's."""
    for name, text in {"srun": srun, "scontrol": scontrol}.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    path = folder / "job.sh"
    path.write_text(script.replace("'/shared/my runs'", f"'{folder}/my runs'"))
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_PROCID": "2", **variables}
    return subprocess.run(["bash", path], env=environ, capture_output=True, text=True, check=False)


def test_words_reach_the_tasks_as_they_are(tmp_path):
    words = ["a b", "$HOME", "it's", 'a"b', "*", RUN_DIR]
    script = Slurm().render(job("printf", "%s|", *words), {})
    done = run(script, tmp_path, 'while [ "$1" != bash ]; do shift; done; "$@"')
    folder = tmp_path / "my runs" / "x-7"
    assert (done.returncode, done.stderr) == (0, "")
    written = (folder / "logs" / "rank-2.log").read_text()
    assert written == "|".join([*words[:-1], str(folder)]) + "|"
    assert (folder / "exit_status").read_text() == "0\n"


def test_a_run_in_an_object_store_has_its_logs_and_restarts_in_the_folder(tmp_path):
    script = Slurm().render(replace(job("printf", "%s", RUN_DIR), address="gs://b/my runs"), {})
    assert run(script, tmp_path, 'while [ "$1" != bash ]; do shift; done; "$@"').returncode == 0
    folder = tmp_path / "my runs" / "x-7"
    assert (folder / "logs" / "rank-2.log").read_text() == "gs://b/my runs/x-7"
    assert (folder / "exit_status").read_text() == "0\n"
    submission = replace(job(), address="gs://b/my runs").submission(Handle("slurm", "", "7"))
    assert (submission.place, submission.run_dir) == ("gs://b/my runs/x-7", Path("/shared/my runs/x-7"))
    assert "place=" not in Slurm().render(job("printf", RUN_DIR), {})


def test_an_edit_of_the_config_after_the_submission_changes_nothing(tmp_path):
    config = tmp_path / "cifar.yaml"
    text = "# $HOME `id` {a}\n#SBATCH --uid=0\nEND OF CONFIG\ntrain: {steps: 3}\n"
    config.write_text(text)
    script = Slurm().render(replace(job("cat", CONFIG), config=config), {})
    config.write_text("train: {steps: 4}\n")
    assert "--uid=0" not in "".join(directives(script.partition("\nexport ")[0]))
    for _ in range(2):  # the second start is after a requeue
        done = run(script, tmp_path, 'while [ "$1" != bash ]; do shift; done; "$@"')
        assert (done.returncode, done.stderr) == (0, "")
    run_dir = tmp_path / "my runs" / "x-7"
    assert (run_dir / "logs" / "rank-2.log").read_text() == 2 * text
    assert (run_dir / "config.yaml").stat().st_mode & 0o777 == 0o600


# Starts the tasks one after the other, so that the first to fail is known, and ends as Slurm's does.
SRUN = """
exec 2> /dev/null
while [ "$1" != bash ]; do shift; done
highest=0
for rank in RANKS; do
    SLURM_PROCID=$rank "$@"
    status=$?
    if [ $status -gt $highest ]; then highest=$status; fi
done
exit $highest
"""


def ends_of(folder, ends, order="0 1 2 3", **options):
    """Run tasks (chief:0, ps:0, worker:0, worker:1) that end like this; return the status, and what was printed."""
    cases = "".join(f"{rank}) {end};; " for rank, end in enumerate(ends))
    script = Slurm().render(job("bash", "-c", f"case $SLURM_PROCID in {cases} esac", **options), {})
    done = run(script, folder, SRUN.replace("RANKS", order))
    assert done.stderr == ""
    run_dir = folder / "my runs" / "x-7"
    assert (run_dir / "exit_status").read_text() == f"{done.returncode}\n"
    assert not list(run_dir.glob(".ends*"))
    return done.returncode, done.stdout.splitlines()


KILLED = "kill -KILL $$"
WITH_ITS_SHELL = "kill -KILL $PPID $$"  # as a node, or Slurm, kills all of a task


@pytest.mark.parametrize(
    ("ends", "order", "status"),
    [
        # A signal has ended one, and the others ask for a restart.
        (["exit 138", "exit 138", KILLED, "exit 138"], "2 0 1 3", 138),
        (["exit 138", "exit 138", "kill -SEGV $$", "exit 138"], "2 0 1 3", 138),
        (["exit 138", "exit 138", "exit 138", WITH_ITS_SHELL], "0 1 2 3", 138),
        # Slurm's SIGTERM, before the tasks handle it.
        (["kill -TERM $$", "kill -TERM $$", "kill -TERM $$", "exit 138"], "0 1 2 3", 138),
        # One would fail again, and the others have lost it, or were told to end.
        (["exit 138", "exit 138", "exit 2", "exit 138"], "2 0 1 3", 2),
        (["exit 138", "exit 138", "exit 138", "exit 1"], "0 1 2 3", 1),
        (["exit 138", "exit 138", "exit 255", "exit 138"], "2 0 1 3", 255),
        (["exit 2", "exit 138", "exit 138", KILLED], "0 3 1 2", 2),
        # A loss comes first, and brings an error about.
        (["exit 1", "exit 138", KILLED, "exit 138"], "2 0 1 3", 138),
        # The chief has ended well: a task that serves it needs no restart, but an error is one.
        (["exit 0", "exit 138", KILLED, "exit 138"], "0 1 2 3", 0),
        (["exit 0", "exit 0", "exit 3", "exit 0"], "0 1 2 3", 3),
        # A task was not started at all.
        (["exit 0", "exit 0", "exit 0", "exit 3"], "0 1 2", 0),
    ],
)
def test_how_the_tasks_have_ended_decides_whether_the_job_starts_again(tmp_path, ends, order, status):
    got, printed = ends_of(tmp_path, ends, order)
    assert got == status
    assert ("scontrol requeue 7" in printed) is (status == 138)
    if status not in (0, 138):
        assert any(line.endswith(f" ended with {status}") for line in printed)


def test_where_no_chief_leads_each_worker_counts(tmp_path):
    got, printed = ends_of(tmp_path, ["exit 0", "exit 138"], "0 1", counts={"worker": 2})
    assert (got, printed) == (138, ["worker:1 ended with 138", "scontrol requeue 7"])


def test_a_job_whose_chief_has_ended_well_survives_workers_that_come_and_go(tmp_path):
    ends = ["exit 0", "exit 0", KILLED, "exit 1"]
    got, printed = ends_of(tmp_path, ends, "2 3 0 1", alone=("worker", "evaluator"))
    assert (got, printed) == (0, ["worker:0 ended with 137", "worker:1 ended with 1"])
    # The signal that has ended such a worker is not what has ended the chief.
    ends[0] = "exit 1"
    assert ends_of(tmp_path, ends, "2 3 0 1", alone=("worker", "evaluator"))[0] == 1
    ends = ["exit 0", "exit 138", "exit 0", "exit 0"]
    counts = {"chief": 1, "evaluator": 1, "ps": 1, "worker": 1}
    assert ends_of(tmp_path, ends, counts=counts, alone=("worker", "evaluator"))[0] == 138


def test_a_step_that_starts_no_task_ends_as_srun_does(tmp_path):
    script = Slurm().render(job(), {})
    assert run(script, tmp_path, "exit 1").returncode == 1
    done = run(script, tmp_path, "exit 143")  # before the shells of the tasks handle the signal
    assert (done.returncode, done.stdout) == (138, "scontrol requeue 7\n")


@pytest.mark.parametrize(("tracking", "passed"), [("proctrack/cgroup", "1"), ("proctrack/linuxproc", "0")])
def test_a_task_gets_a_signal_that_only_its_shell_has_got(tmp_path, tracking, passed):
    seconds = 300 if passed == "1" else 1  # until it has come, or in which it would have come
    program = (
        "import signal, os, time\n"
        "got, end = [], time.monotonic() + " + str(seconds) + "\n"
        "signal.signal(signal.SIGUSR1, lambda *_: got.append(1))\n"
        "os.kill(os.getppid(), signal.SIGUSR1)\n"
        "while not got and time.monotonic() < end: time.sleep(0.05)\n"
        "print(len(got), signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
    )
    script = Slurm().render(job(sys.executable, "-c", program), {})
    srun = 'while [ "$1" != bash ]; do shift; done; "$@"'
    done = run(script, tmp_path, srun, scontrol=f'echo "ProctrackType = {tracking}"')
    assert (tmp_path / "my runs" / "x-7" / "logs" / "rank-2.log").read_text() == f"{passed} True\n"
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("tracking", "prefix"), [("cgroup", ""), ("linuxproc", ""), ("cgroup", "timeout 600")]
)
def test_what_a_shell_script_runs_may_save_its_work(tmp_path, tracking, prefix):
    program = (
        "import signal, sys, time\n"
        "def save(*_):\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"  # timeout may pass it on once more, at any time
        "    time.sleep(1); print('saved', flush=True); sys.exit(138)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('up', flush=True)\n"
        "time.sleep(99)\n"
    )
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "run.sh").write_text(
        f"echo $$ > {tmp_path}/pid; {prefix} {sys.executable} {tmp_path}/train.py\necho no\n"
    )
    script = Slurm().render(job("bash", str(tmp_path / "run.sh")), {})
    log = tmp_path / "my runs" / "x-7" / "logs" / "rank-2.log"
    srun = f"""
        while [ "$1" != bash ]; do shift; done
        "$@" &
        until grep -q up '{log}' 2> /dev/null; do sleep 0.05; done
        kill -TERM $!
        if [ {tracking} = linuxproc ]; then kill -TERM -- -$(cat {tmp_path}/pid); fi  # Slurm signals all
        wait $!
    """
    done = run(script, tmp_path, srun, scontrol=f'echo "ProctrackType = proctrack/{tracking}"')
    assert log.read_text() == "up\nsaved\n"
    assert done.returncode == 138


@pytest.mark.parametrize(
    ("scontrol", "has_own"),
    [
        ("echo ProctrackType = proctrack/cgroup", True),
        ("echo ProctrackType = proctrack/pgid", False),
        ("exit 1", False),  # it may be pgid
    ],
)
def test_a_command_has_a_session_of_its_own_unless_slurm_would_lose_it(tmp_path, scontrol, has_own):
    script = Slurm().render(job(sys.executable, "-c", "import os; print(os.getsid(0) == os.getpid())"), {})
    done = run(script, tmp_path, 'while [ "$1" != bash ]; do shift; done; "$@"', scontrol=scontrol)
    assert (tmp_path / "my runs" / "x-7" / "logs" / "rank-2.log").read_text() == f"{has_own}\n"
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("rank", "ending", "starts", "status"),
    [
        ("2", "kill -9 $$", 4, 137),  # a worker: once, and three times more
        ("2", "exit 138", 1, 138),  # told to end, or the others must start again too
        ("2", "exit 3", 1, 3),
        ("2", "kill -TERM $PPID; sleep 0.2; kill -9 $$", 1, 137),  # told to end, and too slow
        ("1", "kill -9 $$", 1, 137),  # a ps
        ("2", "exit 0", 1, 0),
    ],
)
def test_only_a_lost_task_of_such_a_role_is_started_again_alone(tmp_path, rank, ending, starts, status):
    program = f"echo up >> {tmp_path}/starts; {ending}"
    script = Slurm().render(job("bash", "-c", program, alone=("worker", "evaluator")), {})
    assert "--no-kill" in directives(script)
    assert "--no-kill --wait=0 " in script
    done = run(script, tmp_path, 'while [ "$1" != bash ]; do shift; done; "$@"', SLURM_PROCID=rank)
    assert (tmp_path / "starts").read_text() == "up\n" * starts
    assert done.returncode == (138 if status > 128 else status)
    assert (f":0 ended with {status}\n" in done.stdout) is (status != 0)
    log = (tmp_path / "my runs" / "x-7" / "logs" / f"rank-{rank}.log").read_text()
    assert log.count("Lost with status 137: start ") == starts - 1


def test_a_new_checkpoint_renews_the_restarts_of_a_task_alone(tmp_path):
    saved = tmp_path / "my runs" / "x-7" / "logs" / "saved_step"
    program = f"echo up >> {tmp_path}/starts; [ $(wc -l < {tmp_path}/starts) != 3 ] || echo 20 > '{saved}'; kill -9 $$"
    script = Slurm().render(job("bash", "-c", program, alone=("worker", "evaluator")), {})
    done = run(script, tmp_path, 'while [ "$1" != bash ]; do shift; done; "$@"')
    assert (tmp_path / "starts").read_text() == "up\n" * (2 + 1 + 3)  # the third one has seen a checkpoint
    assert "worker:0 ended with 137\n" in done.stdout


@pytest.mark.parametrize("counts", [{"chief": 1, "worker": 2, "ps": 1}, {"evaluator": 1, "worker": 2}])
def test_where_no_worker_comes_and_goes_a_lost_node_ends_the_job(counts):
    # An evaluator, which does not end with the others, would keep the nodes until it gave up.
    script = Slurm().render(job(counts=counts, alone=("evaluator",)), {})
    assert "no-kill" not in script


@pytest.mark.parametrize(("others", "status", "is_told"), [("exit 138", 138, True), ("exit 0", 0, False)])
def test_an_evaluator_does_not_keep_a_job_that_has_to_start_again(tmp_path, others, status, is_told):
    told, pids, done = tmp_path / "told", tmp_path / "pids", tmp_path / "done"
    waits = f"until [ -e '{done}' ]; do sleep 0.05; done; exit 0"  # for the last checkpoint
    program = f"case $SLURM_PROCID in 0) echo $$ $PPID > '{pids}'; {waits} ;; *) {others} ;; esac"
    counts = {"evaluator": 1, "worker": 2}
    script = Slurm().render(job("bash", "-c", program, counts=counts, alone=("evaluator",)), {})
    assert "sleep 60\n" in script
    script = script.replace("sleep 60\n", "sleep 0\n").replace("sleep 5;", "sleep 0.05;")
    (tmp_path / "scancel").write_text(
        f"#!/bin/bash\nread task shell < '{pids}'; echo \"$*\" > '{told}'; kill -TERM $shell; sleep 0.2; kill $task\n"
    )
    (tmp_path / "scancel").chmod(0o755)
    srun = f"""
        while [ "$1" != bash ]; do shift; done
        SLURM_PROCID=0 "$@" &
        evaluator=$!
        until [ -s '{pids}' ]; do sleep 0.05; done
        for rank in 1 2; do SLURM_PROCID=$rank "$@"; done
        {"" if is_told else f"touch '{done}'"}
        wait $evaluator
    """
    ended = run(script, tmp_path, srun)
    assert (ended.returncode, told.exists()) == (status, is_told), ended.stdout + ended.stderr
    if is_told:
        assert told.read_text() == "--signal=TERM 7\n"
        assert "scontrol requeue 7\n" in ended.stdout


@pytest.mark.parametrize(
    ("variables", "number"), [({}, "7"), ({"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3"}, "5_3")]
)
def test_it_asks_to_be_started_again_after_138_while_restarts_are_left(tmp_path, variables, number):
    script, run_dir = Slurm().render(job(restarts=2), {}), tmp_path / "my runs" / f"x-{number}"
    # The step of the last checkpoint at each end; a new one renews the restarts.
    ends = [("", True), ("20", True), ("20", True), ("20", False), ("40", True), ("40", True), ("40", False)]
    for count, (saved, asked) in enumerate(ends):
        variables = {**variables, "SLURM_RESTART_COUNT": str(count)}
        if saved:
            (run_dir / "logs" / "saved_step").write_text(f"{saved}\n")
        done = run(script, tmp_path, "exit 138", **variables)
        assert (done.returncode, done.stderr) == (138, "")
        assert done.stdout == (f"scontrol requeue {number}\n" if asked else ""), saved
        assert (run_dir / "exit_status").read_text() == "138\n"
    assert run(script, tmp_path, "exit 3").stdout == ""
    del variables["SLURM_RESTART_COUNT"]  # another job continues the run
    assert run(script, tmp_path, "exit 138", **variables).stdout == f"scontrol requeue {number}\n"


def test_another_job_continues_an_earlier_run(tmp_path):
    earlier = replace(job("sh", "-c", 'echo "$0"', RUN_DIR), run="x-3")
    done = run(Slurm().render(earlier, {}), tmp_path, 'while [ "$1" != bash ]; do shift; done; "$@"')
    assert (done.returncode, done.stderr) == (0, "")
    folder = tmp_path / "my runs" / "x-3"
    assert (folder / "logs" / "rank-2.log").read_text() == f"{folder}\n"
    assert earlier.submission(Handle("slurm", "", "7")).run_dir == Path("/shared/my runs/x-3")
    with pytest.raises(ConfigError, match=r"^--resume: is not supported with a job array"):
        Slurm().render(earlier, {"array": "0-3"})


@pytest.mark.parametrize(("place", "option"), [("alpha", ""), ("beta", "--clusters=beta "), ("", "")])
def test_a_handle_is_about_the_cluster_that_it_names(tmp_path, monkeypatch, place, option):
    text = """#!/bin/bash
        if [ "$*" = "show config" ]; then echo "ClusterName             = alpha"; exit; fi
        echo "${0##*/} $*" >> FILE
        echo "   JobState=RUNNING Reason=None"
    """
    for name in "scontrol", "scancel":
        (tmp_path / name).write_text(text.replace("FILE", str(tmp_path / "calls")))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    submission = job().submission(Handle("slurm", place, "77"))
    assert Slurm().state(submission) == (State.RUNNING, "RUNNING")
    Slurm().cancel(submission)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [*2 * [f"scontrol {option}show job 77"], f"scancel {option}77"]


def test_the_configs_of_the_page_are_right(tmp_path):
    page = Path(__file__).parents[4] / "docs" / "engines" / "slurm.md"
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        (tmp_path / "x.yaml").write_text(block)
        section = read_config(tmp_path / "x.yaml").config.engine
        assert (section.slurm != SlurmSection()) == ("slurm:" in block)
        Slurm().render(replace(job(), section=section), {})


def test_a_setup_that_ends_shells_at_errors_ends_no_job(tmp_path):
    script = Slurm().render(job(setup=["set -euo pipefail"]), {})
    done = run(script, tmp_path, "exit 138", SLURM_JOB_NAME="x")
    assert done.stdout.startswith("scontrol requeue")
