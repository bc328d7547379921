"""The commands about jobs on other machines, with the engine that docs/engines/plugins.md shows."""

import io
import re
import stat
import sys
from pathlib import Path

import pytest

from tfdist.cli import cancel, list, logs, render, status, submit
from tfdist.engines import find_engine as engines
from tfdist.engines.compose.engine import Compose
from tfdist.engines.job_handle_and_state import Handle, State
from tfdist.engines.log_files_and_exit_status import progress_path, state_of_exit_status
from tfdist.engines.submitted_jobs import find_submission
from tfdist.errors import ConfigError, TfdistError

PAGE = Path(__file__).parents[3] / "docs" / "engines" / "plugins.md"


@pytest.fixture
def queue(monkeypatch, tmp_path):
    """Install the engine of the page, and return it: an object that keeps the jobs that it was given."""
    [block] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {}
    exec(block, names)

    class Queue(names["Queue"]):
        jobs, cancelled = [], []

        def submit(self, job, options):
            self.jobs.append((job, options))
            return super().submit(job, options)

        def state(self, submission):
            ended = State.SUCCEEDED, "it has ended"
            return ended if (tmp_path / "ended").exists() else super().state(submission)

        def cancel(self, submission):
            self.cancelled.append(submission)

    monkeypatch.setitem(engines._ENGINES, "queue", Queue)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "argv", ["/x/tfdist/cli/submit.py", "queue", "--config", "a b.yaml"])
    monkeypatch.chdir(tmp_path)
    return Queue


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "a b.yaml"
    path.write_text("cluster: {worker: 2, ps: 1, evaluator: 1}\n")
    return path


def test_a_config_is_submitted_and_looked_after_by_its_handle(queue, config, tmp_path, capsys):
    submit.main(["queue"], config=str(config), set=["train.steps=3"], option=["gpus=2", "--quiet"])
    [(job, options)] = queue.jobs
    assert options == {"gpus": "2", "quiet": ""}
    module, flags = ("-m", "tfdist.train"), ("--config", str(config), "--run_dir", "R", "--set=train.steps=3")
    assert job.words(python="py", run_dir="R") == ("py", *module, *flags)
    assert job.counts == {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}
    assert [str(task) for task in job.tasks] == ["chief:0", "evaluator:0", "ps:0", "worker:0", "worker:1"]
    assert job.made_by == "tfdist submit queue --config 'a b.yaml'"
    assert capsys.readouterr().out == "queue://here/7\n"

    status.main(["queue://here/7"])
    run = tmp_path / "runs" / "a-b-7"
    assert capsys.readouterr().out == f"queue://here/7  running (it runs)  {run}\n"
    list.main()
    assert re.search(
        rf"queue://here/7 +running +20[-0-9]+ [:0-9]+ +{re.escape(str(run))}", capsys.readouterr().out
    )
    cancel.main(["queue://here/7"])
    assert [str(submission.handle) for submission in queue.cancelled] == ["queue://here/7"]


def test_a_job_whose_tasks_are_started_again_resumes_in_its_own_folder(queue, config):
    submit.main(["queue"], config=str(config), set=["checkpoint.resume=never"])
    [(job, _)] = queue.jobs
    assert job.command[-2:] == ("--set=checkpoint.resume=never", "--set=checkpoint.resume=auto")


def test_an_address_of_an_object_store_is_for_engines_that_take_one(queue, config, monkeypatch):
    with pytest.raises(
        ConfigError, match=r"^--run_dir: expected a path of this machine, received 'gs://b/x'"
    ):
        submit.main(["queue"], config=str(config), run_dir="gs://b/x")
    monkeypatch.setattr(queue, "takes_addresses", True, raising=False)
    submit.main(["queue"], config=str(config), run_dir="gs://b/x/")
    [(job, _)] = queue.jobs
    assert (job.address, job.folder) == ("gs://b/x", Path("runs").absolute())
    with pytest.raises(ConfigError, match=r"^--run_dir: 'gs://b/x' is an address, which only --config takes"):
        submit.main(["queue", "a_script"], run_dir="gs://b/x")


def test_a_run_is_resumed_by_the_handle_of_its_job(queue, config, tmp_path, capsys, monkeypatch):
    submit.main(["queue"], config=str(config), run_dir="other")
    with pytest.raises(ConfigError, match=r"^--resume: queue://here/7 is running \(it runs\)"):
        submit.main(["queue"], config=str(config), resume="queue://here/7")
    (tmp_path / "ended").touch()
    capsys.readouterr()
    submit.main(["queue"], config=str(config), resume="queue://here/7")
    job, _ = queue.jobs[-1]
    assert job.run_dir("8") == tmp_path / "other" / "a-b-7"
    submit.main(["queue"], config=str(config), resume="queue://here/7", run_dir="other")
    job, _ = queue.jobs[-1]
    assert (job.folder, str(job.earlier)) == (tmp_path / "other", "queue://here/7")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(
        ConfigError, match=r"^--run_dir: is 'other', but --resume is in '.*/other'\. Leave it"
    ):
        submit.main(["queue"], config=str(config), resume="queue://here/7", run_dir="other")
    monkeypatch.chdir(tmp_path)
    assert f"{tmp_path}/other/a-b-7 does not exist on this machine" in capsys.readouterr().err
    with monkeypatch.context() as compose:
        compose.setattr(queue, "has_runs_in_volume", Compose().has_runs_in_volume, raising=False)
        submit.main(["queue"], config=str(config), resume="queue://here/7", option=["runs=volume"])
        assert capsys.readouterr().err == ""
    with pytest.raises(ConfigError, match=r"^slurm://x/1: was not submitted"):
        submit.main(["slurm"], config=str(config), resume="slurm://x/1")
    with pytest.raises(ConfigError, match=r"^--resume: expected a job of slurm, received 'queue://here/7'"):
        submit.main(["slurm"], config=str(config), resume="queue://here/7")


def test_a_run_is_resumed_by_its_folder_or_address(queue, config, tmp_path, monkeypatch, capsys):
    (tmp_path / "runs" / "a-3").mkdir(parents=True)
    (tmp_path / "ended").touch()
    for text in ("runs/a-3", f"{tmp_path}/runs/a-3/", "a-3"):
        for run_dir in (None, "runs"):
            submit.main(["queue"], config=str(config), resume=text, run_dir=run_dir)
            assert queue.jobs[-1][0].run_dir("8") == tmp_path / "runs" / "a-3"
    with pytest.raises(
        ConfigError, match=r"^--run_dir: is 'other', but --resume is in 'runs'\. Leave it out"
    ):
        submit.main(["queue"], config=str(config), resume="runs/a-3", run_dir="other")
    with pytest.raises(ConfigError, match=r"^--resume: .*/runs/a-4 does not exist$"):
        submit.main(["local"], config=str(config), resume="runs/a-4")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(queue, "takes_addresses", True, raising=False)
    submit.main(["queue"], config=str(config), resume="gs://b/x/a-3")
    job, _ = queue.jobs[-1]
    assert (job.address_of(job.run), job.run_dir("8")) == ("gs://b/x/a-3", tmp_path / "runs" / "a-3")
    for wrong in ("", "runs/..", "runs/a b"):
        with pytest.raises(ConfigError, match=r"^--resume: expected a handle, or the folder of a run"):
            submit.main(["queue"], config=str(config), resume=wrong)


@pytest.mark.parametrize("resume", ["queue://here/7", "queue://here/8", "runs/a-b-7", "../RUNS/a-b-7"])
@pytest.mark.parametrize("is_placed", [False, True])
def test_a_run_that_another_job_continues_is_not_resumed(
    queue, config, tmp_path, monkeypatch, resume, is_placed
):
    states, numbers = {"7": State.FAILED}, iter("789")
    monkeypatch.setattr(
        queue, "submit", lambda self, job, _: job.submission(Handle("queue", "here", next(numbers)))
    )
    monkeypatch.setattr(queue, "state", lambda self, job: (states[job.handle.number], "it waits"))
    monkeypatch.setattr(queue, "places_runs", is_placed, raising=False)
    submit.main(["queue"], config=str(config))
    (tmp_path / "runs" / "a-b-7").mkdir(parents=True)
    submit.main(["queue"], config=str(config), resume="queue://here/7")
    states["8"] = State.PENDING
    with pytest.raises(ConfigError, match=r"^--resume: queue://here/8 is pending \(it waits\)\. Wait for"):
        submit.main(["queue"], config=str(config), resume=resume.replace("RUNS", f"{tmp_path.name}/runs"))
    states["8"] = State.CANCELLED
    submit.main(["queue"], config=str(config), resume=resume.replace("RUNS", f"{tmp_path.name}/runs"))


def test_an_option_counts_once_but_lines_of_a_list_are_joined(queue, config, monkeypatch):
    with pytest.raises(ConfigError, match=r"^--option gpus: expected one value, received '1' and '2'"):
        submit.main(["queue"], config=str(config), option=["gpus=1", "--gpus=2"])
    monkeypatch.setattr(queue, "repeatable", ("setup",), raising=False)
    submit.main(["queue"], config=str(config), option=["setup=a=1", "setup=b"])
    assert queue.jobs[-1][1] == {"setup": "a=1\nb"}


def test_a_job_without_a_record_is_named(queue, config, tmp_path, capsys):
    (tmp_path / "state").touch()  # so that no folder can be made there
    submit.main(["queue"], config=str(config))
    printed = capsys.readouterr()
    assert printed.out == "queue://here/7\n"
    [line] = printed.err.splitlines()
    assert line.startswith("tfdist: queue://here/7: was submitted, but `tfdist status`, ")
    assert "cannot be written: " in line


def test_a_job_whose_handle_cannot_be_printed_is_on_record(queue, config, monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    with pytest.raises(ValueError, match="closed file"):
        submit.main(["queue"], config=str(config))
    assert find_submission(Handle.parse("queue://here/7")).tasks


def test_the_status_says_how_far_the_training_has_come(queue, config, tmp_path, capsys):
    submit.main(["queue"], config=str(config))
    path = progress_path(tmp_path / "runs" / "a-b-7")
    path.parent.mkdir(parents=True)
    path.write_text('{"step": 20, "steps": 80, "loss": 0.25}\n')
    status.main(["queue://here/7"])
    assert capsys.readouterr().out.endswith("a-b-7  step 20 of 80 (25 %), loss 0.25\n")


def test_the_status_says_what_the_chief_has_printed_where_no_file_is_seen(
    queue, config, tmp_path, capsys, monkeypatch
):
    submit.main(["queue"], config=str(config))
    last = "I0101 tfdist: step 1,040 of 2,080 (50 %), 12 examples/s"
    lines = ["step 20 of 80 (25 %), loss 0.25", last, "step 7: accuracy 1"]
    monkeypatch.setattr(
        queue, "last_lines", lambda self, job, task: lines if task == "chief:0" else [], raising=False
    )
    status.main(["queue://here/7"])
    assert capsys.readouterr().out.endswith("a-b-7  step 1,040 of 2,080 (50 %), 12 examples/s\n")
    (tmp_path / "ended").touch()
    status.main(["queue://here/7"])
    assert "step" not in capsys.readouterr().out


def test_logs_are_those_of_all_tasks_or_of_one(queue, config, tmp_path, capsys):
    submit.main(["queue"], config=str(config))
    folder = tmp_path / "runs" / "a-b-7" / "logs"
    folder.mkdir(parents=True)
    (folder / "rank-0.log").write_bytes(b"one\ntwo \xff")
    (folder / "rank-4.log").write_text("three\n")
    capsys.readouterr()
    logs.main(["queue://here/7"])
    assert capsys.readouterr().out == "chief:0: one\nchief:0: two \\xff\nworker:1: three\n"
    (tmp_path / "ended").touch()
    logs.main(["queue://here/7"], task="chief:0", follow=True)
    assert capsys.readouterr().out == "one\ntwo \\xff\n"


def test_logs_of_an_array_are_those_of_one_of_its_jobs(queue, config, tmp_path, capsys):
    submit.main(["queue"], config=str(config))
    for index in "0", "1":
        folder = tmp_path / "runs" / f"a-b-7_{index}" / "logs"
        folder.mkdir(parents=True)
        (folder / "rank-4.log").write_text(f"I am {index}\n")
    capsys.readouterr()
    for task, printed in {"1/worker:1": "I am 1\n", "worker:1": "I am 0\nI am 1\n"}.items():
        logs.main(["queue://here/7"], task=task)
        assert capsys.readouterr().out == printed
    for task, message in {
        "2/worker:1": "there is no job '2' of an array",
        "1/worker:9": "expected one of",
    }.items():
        with pytest.raises(ConfigError, match=f"--task: {message}"):
            logs.main(["queue://here/7"], task=task)


def test_a_script_is_rendered(queue, capsys, tmp_path):
    render.main(["queue", "python", "my script.py", "--lr", "3"], workers=1)
    assert capsys.readouterr().out == "# Submit it with: queue FILE\npython my script.py --lr 3\n"
    render.main(["queue", "python", "s.py"], output=str(tmp_path / "job"))
    assert (tmp_path / "job").read_text().endswith("python s.py\n")


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        ([], {}, "command line: names no engine. Name one: "),
        (["queue"], {}, "command line: needs either --config or the command of a script"),
        (["queue", "x"], {"config": "a b.yaml"}, "command line: needs either --config or the command"),
        (["queue"], {"config": "a b.yaml", "ps": 1}, "--workers, --ps, --alone: are for a script, but --config is given"),
        (["queue"], {"config": "addresses.yaml"}, "addresses.yaml:1: cluster: gives addresses, but a scheduler"),
        (["queue", "x"], {"run_dir": "gs://b/x"}, "--run_dir: 'gs://b/x' is an address, which only --config takes"),
        (["queue", "x"], {"option": ["=3"]}, "--sbatch, --option: expected an option and its value"),
        (["queue", "x"], {"alone": ["wroker"]}, "--alone: there is no 'wroker'. Did you mean 'worker'?"),
        (["queue", "x"], {"alone": ["chief"], "ps": 1}, "--alone: chief:0 leads the others, which cannot continue"),
        (["queue", "x"], {"set": ["train.steps=3"]}, "--set: changes a config, but --config is missing"),
        (["queue"], {"config": "plugins.yaml"}, "engine.plugins: there is no 'queeu'. Did you mean 'queue'?"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(queue, config, tmp_path, words, options, message):
    (tmp_path / "addresses.yaml").write_text("cluster: {worker: ['a:1', 'b:1']}\n")
    (tmp_path / "plugins.yaml").write_text("engine: {plugins: {queeu: {a: 1}}}\n")
    with pytest.raises(ConfigError) as caught:
        submit.main(words, **options)
    assert str(caught.value).startswith(message)
    assert queue.jobs == []


def test_a_plug_in_has_a_section_of_the_config(queue, tmp_path):
    (tmp_path / "x.yaml").write_text("engine: {plugins: {queue: {priority: 3}}}\n")
    submit.main(["queue"], config="x.yaml")
    assert queue.jobs[0][0].section.plugins["queue"] == {"priority": 3}


@pytest.mark.parametrize("words", [["queue", "true"], ["dockerfile"]])
def test_words_that_are_not_utf_8_are_refused(queue, words, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["/x/tfdist/cli/render.py", *words, "\udcff"])
    with pytest.raises(ConfigError, match=r"^command line: '\\udcff' is not UTF-8\. Rename it$"):
        render.main(words)


def test_a_folder_that_is_not_utf_8_is_refused(queue, tmp_path, monkeypatch):
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=r"^--run_dir: '/.* is not UTF-8"):
        submit.main(["queue", "true"])
    assert queue.jobs == []


def test_the_output_is_a_file(queue, tmp_path):
    with pytest.raises(ConfigError, match=r"^--output: '/.*' is a folder\. Name a file in it$"):
        render.main(["queue", "python", "s.py"], output=str(tmp_path))


@pytest.mark.parametrize(
    "flags", [{"workers": 9}, {"sbatch": ["a=b"]}, {"alone": ["worker"]}, {"run_dir": "x"}]
)
def test_a_dockerfile_has_no_options_of_jobs(flags):
    [name] = flags
    with pytest.raises(
        ConfigError, match=rf"^--{name}: is for a job, and a Dockerfile has none\. Leave it out$"
    ):
        render.main(["dockerfile"], **flags)


def test_options_of_a_dockerfile_are_keys_of_its_section(config, capsys):
    render.main(["dockerfile"], option=["base=debian:12", "packages=[a==1]"])
    assert {"ARG BASE=debian:12", "    'a==1' \\"} < set(capsys.readouterr().out.splitlines())
    with pytest.raises(ConfigError, match="--set: changes a config, but --config is missing"):
        render.main(["dockerfile"], set=["train.steps=3"])
    with pytest.raises(ConfigError, match=r"--option bas=x: bas: unknown key\. Did you mean 'base'"):
        render.main(["dockerfile"], option=["bas=x"])


def test_the_list_has_all_jobs_whatever_their_schedulers_say(queue, config, tmp_path, capsys, monkeypatch):
    for number in "7", "8", "9":
        monkeypatch.setattr(
            queue,
            "submit",
            lambda self, job, _, number=number: job.submission(Handle("queue", "here", number)),
        )
        submit.main(["queue"], config=str(config))
    folder = tmp_path / "state" / "tfdist" / "submitted"
    (folder / "broken.json").write_text('{"handle": ')
    (folder / "other.json").write_text('{"handle": "queue://here/1"}')
    asked = []

    def state(self, submission):
        asked.append(submission)
        raise TfdistError("queue", "has not answered in 60 s, " + 30 * "and more, ")

    monkeypatch.setattr(queue, "state", state)
    capsys.readouterr()
    list.main()
    printed = capsys.readouterr()
    _, *lines = printed.out.splitlines()
    assert [line.split()[0] for line in lines] == [f"queue://here/{number}" for number in "987"]
    assert all(
        "unknown: queue: has not answered in 60 s, and more" in line and "… " in line for line in lines
    )
    assert max(map(len, lines)) < 130 + len(str(tmp_path))
    assert len(asked) == 1  # the others of the same place would wait as long
    errors = printed.err.splitlines()
    assert [line.partition(": is no record")[0] for line in errors] == [
        f"tfdist: {folder / name}" for name in ("broken.json", "other.json")
    ]


def listed(capsys):
    """Return the states that `tfdist list` prints, by the numbers of the jobs."""
    capsys.readouterr()
    list.main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    return {words[0].rpartition("/")[2]: words[1] for words in lines}


def test_the_engine_of_an_ended_job_is_asked_once(queue, config, tmp_path, capsys, monkeypatch):
    numbers, asked, made = iter("6789"), [], []
    states = {"6": State.FAILED, "7": State.SUCCEEDED, "8": State.RUNNING, "9": State.UNKNOWN}

    def state(self, submission):
        asked.append(submission.handle.number)
        return states[submission.handle.number], ""

    monkeypatch.setattr(
        queue, "submit", lambda self, job, _: job.submission(Handle("queue", "here", next(numbers)))
    )
    monkeypatch.setattr(queue, "state", state)
    monkeypatch.setattr(queue, "__init__", lambda self: made.append(self))
    submit.main(["queue"], config=str(config))
    submit.main(["queue"], config=str(config), resume="queue://here/6")
    submit.main(["queue"], config=str(config))
    submit.main(["queue"], config=str(config))
    shown = {number: state.value for number, state in states.items()}
    made.clear()
    asked.clear()
    assert listed(capsys) == listed(capsys) == shown
    assert len(made) == 2
    assert sorted(asked) == [*"66", "7", *"88", *"99"]  # the files of 6 may be those of 7
    monkeypatch.setattr(queue, "runs_again", True, raising=False)
    states["7"] = State.RUNNING
    assert listed(capsys)["7"] == "running"


def test_an_ended_job_that_a_user_has_started_again_is_listed_as_running(queue, config, tmp_path, capsys):
    submit.main(["queue"], config=str(config))
    (tmp_path / "ended").touch()
    assert listed(capsys) == {"7": "succeeded"}
    (tmp_path / "ended").unlink()
    assert listed(capsys) == {"7": "succeeded"}
    status.main(["queue://here/7"])
    assert listed(capsys) == {"7": "running"}


def test_a_run_that_cannot_be_read_leaves_the_states_of_other_jobs(
    queue, config, tmp_path, capsys, monkeypatch
):
    numbers = iter("789")
    monkeypatch.setattr(
        queue, "submit", lambda self, job, _: job.submission(Handle("queue", "here", next(numbers)))
    )
    monkeypatch.setattr(queue, "state", lambda self, job: state_of_exit_status(job) or (State.RUNNING, ""))
    for number in "789":
        submit.main(["queue"], config=str(config))
        (tmp_path / "runs" / f"a-b-{number}").mkdir(parents=True)
    (tmp_path / "runs" / "a-b-8" / "exit_status").mkdir()
    (tmp_path / "runs" / "a-b-7" / "exit_status").write_text("0\n")
    assert listed(capsys) == {"9": "running", "8": "unknown:", "7": "succeeded"}


@pytest.mark.parametrize("words", [["slurm"], ["dockerfile"]])
def test_a_typed_line_end_stays_in_the_comment(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/x/tfdist/cli/render.py", *words, "a\nrm -rf /\x0bb"])
    render.main([*words, "true"] if words == ["slurm"] else words)
    assert f"# Made by: tfdist render {words[0]} 'a rm -rf / b'\n" in capsys.readouterr().out


def test_the_values_of_secrets_are_neither_in_the_comment_nor_in_the_record(
    queue, config, monkeypatch, capsys
):
    typed = ["--option", "env.HF_TOKEN=hf_1", "--hf_token", "hf_2", "--set=data.password=hf_3"]
    monkeypatch.setattr(sys, "argv", ["/x/tfdist/cli/render.py", "slurm", *typed])
    shown = "slurm --option 'env.HF_TOKEN=***' --hf_token '***' '--set=data.password=***'"
    render.main(["slurm", "true"])
    assert f"# Made by: tfdist render {shown}\n" in capsys.readouterr().out
    submit.main(["queue"], config=str(config))
    assert find_submission(Handle.parse("queue://here/7")).made_by == f"tfdist render {shown}"


def test_only_the_user_may_read_records_and_files_with_the_secret_of_a_job(queue, config, tmp_path):
    submit.main(["queue"], config=str(config))
    [record] = (tmp_path / "state" / "tfdist" / "submitted").iterdir()
    manifest = tmp_path / "k.yaml"
    manifest.touch(0o644)
    render.main(["kubernetes", "true"], output=str(manifest), option=["image=x"])
    assert "TFDIST_SECRET" in manifest.read_text()
    render.main(["slurm", "true"], output=str(tmp_path / "job.sh"))
    (tmp_path / "train.sh").touch(0o644)
    render.main(["slurm"], config=str(config), output=str(tmp_path / "train.sh"))
    written = (record, manifest, tmp_path / "train.sh", tmp_path / "job.sh")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in written]
    usual = stat.S_IMODE(config.stat().st_mode)
    assert usual != 0o600
    assert modes == [0o600, 0o600, 0o600, usual]


@pytest.mark.parametrize("words", [[], ["queue://here/7", "queue://here/8"]])
def test_a_handle_is_needed(words):
    with pytest.raises(ConfigError, match="command line: expected a handle, as `tfdist list` prints it"):
        status.main(words)
