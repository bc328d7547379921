"""The script for `ray job submit`, what it passes to `tfdist.ray.launch`, and mistakes; none of this needs Ray."""

import importlib
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

import tfdist.engines.ray
import tfdist.ray
from tfdist._utils import object_store
from tfdist.engines import follow_logs
from tfdist.engines.job_description import CONFIG, PYTHON, RUN_DIR, Job
from tfdist.engines.job_handle_and_state import Handle, State
from tfdist.engines.ray import engine
from tfdist.engines.ray import launch as launch_on_ray
from tfdist.engines.ray.engine import Ray, _address
from tfdist.engines.ray.launch_plan import LaunchPlan
from tfdist.errors import ConfigError, TaskLost, TfdistError
from tfdist.trainer.config import read_config
from tfdist.trainer.run_folder import RunFolder
from tfdist.trainer.sections.engine import EngineSection, RaySection

PAGES = Path(__file__).parents[4] / "docs" / "engines"
RUN = RunFolder.at(Path("run"))
TRAIN = (PYTHON, "-m", "tfdist.train", "--config", CONFIG, "--run_dir", RUN_DIR)


def job(*command, config=None, counts=None, alone=(), **section):
    return Job(
        name="x",
        command=command or ("true",),
        counts=counts or {"chief": 1, "worker": 2, "ps": 1},
        folder=Path("/shared/my runs"),
        made_by="tfdist submit ray",
        config=config,
        section=EngineSection(ray=RaySection(**section)),
        alone=alone,
    )


def launched(script, monkeypatch, result=None, number="x-7"):
    """Run the script with a launch of our own; return what it was called with."""
    calls = []

    def launch(what, **arguments):
        content = what.read_text() if isinstance(what, Path) else None
        calls.append((what, content, arguments))
        if result is not None:
            raise result

    monkeypatch.setattr(tfdist.ray, "launch", launch)
    monkeypatch.setenv("TFDIST_JOB_NUMBER", number)
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    exec(compile(script, "script", "exec"), {"__name__": "__main__"})
    [call] = calls
    return call


def test_a_script_that_is_started_by_hand_names_a_folder_that_no_other_has(monkeypatch):
    script = Ray().render(job(), {})
    names = {launched(script, monkeypatch, number="")[2]["run_dir"].name for _ in range(4)}
    assert len(names) == 4
    assert all(re.fullmatch(r"x-\d{8}-\d{6}-[0-9a-f]{4}", name) for name in names)


def test_a_script_of_the_users_is_every_task(monkeypatch):
    words = ["python", "it's", 'a"b', "$HOME", "\\n"]
    script = Ray().render(job(*words, alone=("worker",)), {"worker:GPU": "1", "placement": "SPREAD"})
    assert script.startswith("# Made by: tfdist submit ray\n# Submit it with: ray job submit ")
    what, _, arguments = launched(script, monkeypatch)
    assert what == words
    assert arguments == {
        "run_dir": Path("/shared/my runs/x-7"),
        "resources": {"worker": {"GPU": 1.0}},
        "placement": "SPREAD",
        "max_failures": 3,
        "start_timeout": None,
        "roles": {"chief": 1, "worker": 2, "ps": 1},
        "alone": ["worker"],
    }


def test_the_script_says_how_to_submit_it_with_its_runtime_environment():
    environment = {"working_dir": "my code", "pip": ["x==1"], "env_vars": {"A": "it's"}}
    script = Ray().render(job(runtime_env=environment, address="http://head:8265"), {})
    line = script.splitlines()[1].removeprefix("# Submit it with: ")
    *words, text, dashes, python, file = shlex.split(line)
    assert words == [
        *("ray", "job", "submit", "--address", "http://head:8265"),
        *("--working-dir", "my code", "--runtime-env-json"),
    ]
    assert json.loads(text) == {"pip": ["x==1"], "env_vars": {"A": "it's"}}
    assert [dashes, python, file] == ["--", "python", "FILE"]
    assert "# Submit it with: ray job submit --working-dir . -- python FILE\n" in Ray().render(job(), {})


def test_the_id_of_a_submission_names_the_folder_of_a_script_that_is_started_by_hand(monkeypatch):
    script = Ray().render(job(), {"submission_id": "mine"})
    assert "# Submit it with: ray job submit --submission-id mine --working-dir . -- python FILE\n" in script
    assert launched(script, monkeypatch, number="")[2]["run_dir"] == Path("/shared/my runs/mine")


def test_a_run_in_an_object_store_has_its_report_there(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "c.yaml").write_text("cluster: {worker: 2}\n")
    at_address = replace(job(*TRAIN, config=tmp_path / "c.yaml"), address="gs://b/runs")
    _, _, arguments = launched(Ray().render(at_address, {}), monkeypatch)
    assert arguments["run_dir"] == "gs://b/runs/x-7"
    run = RunFolder.at(arguments["run_dir"])
    work = launch_on_ray._plan_of(tmp_path / "c.yaml", (), None, (), (), run)
    assert work.command[-2:] == ("--run_dir", "gs://b/runs/x-7")
    assert work.results == ()  # none that a task leaves on its node
    asked = []
    monkeypatch.setattr(object_store, "read_file", lambda address: asked.append(address) or b'{"steps": 3}')
    assert launch_on_ray._result("c.yaml", None, run) == {"steps": 3}
    assert asked == ["gs://b/runs/x-7/report.json"]
    with pytest.raises(ConfigError, match=r"^run_dir: expected a path of this machine, received 'gs://b/x'"):
        launch_on_ray._wanted_place("gs://b/x", is_config=False)


@pytest.mark.parametrize("text", ["a: 1\n", 'a: """x\n', "a: \\n\n", "é: 'ü'", 'a: "b"', "a: \t1\n"])
def test_the_script_has_the_config_as_it_is(tmp_path, monkeypatch, text):
    (tmp_path / "c.yaml").write_text(text)
    config_job = job(*TRAIN, "--set=train.steps=3", config=tmp_path / "c.yaml", max_failures=1)
    what, content, arguments = launched(Ray().render(config_job, {"max_failures": "9"}), monkeypatch)
    assert (what.name, content) == ("c.yaml", text)
    assert (arguments["changes"], arguments["max_failures"]) == (["train.steps=3"], 9)


def test_an_error_of_the_launch_is_one_line(monkeypatch):
    with pytest.raises(SystemExit, match=r"^tfdist: worker:0: lost$"):
        launched(Ray().render(job(), {}), monkeypatch, result=TfdistError("worker:0", "lost"))


def test_an_unusable_folder_for_temporary_files_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "c.yaml").write_text("a: 1\n")
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    script = Ray().render(job(*TRAIN, config=tmp_path / "c.yaml"), {})
    with pytest.raises(SystemExit, match=r"^tfdist: temporary folder: cannot be made: No such .*set TMPDIR"):
        exec(compile(script, "script", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adress": "x"}, r"--option adress=x: adress: unknown key\. Did you mean 'address'\?"),
        ({"boss:GPU": "1"}, r"engine\.ray\.resources: there is no 'boss'\. Known: chief, worker, ps"),
        ({"worker:GPU": "one"}, r"--option worker:GPU=one: resources\.worker\.GPU: expected a number, received 'one'"),
        ({"worker:GPU": "-1"}, r"resources\.worker\.GPU: expected a number >= 0\.0, received -1"),
        ({"worker:GPU": "nan"}, r"expected a number, received 'nan'"),
        ({"placement": "SPRED"}, r"placement: there is no 'SPRED'\. Did you mean 'SPREAD'"),
        ({"submission_id": "a/b"}, r"--option submission_id: expected letters, digits and any of _\.-, received 'a/b'"),
        ({"worker:CPU": "0"}, r"^engine\.ray\.resources: worker: is nothing, for which Ray reserves no place"),
        ({"start_timeout": "0"}, r"start_timeout: expected a number > 0\.0, received 0"),
        ({"max_failures": "-1"}, r"max_failures: expected a whole number >= 0, received -1"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_option_is_one_line(options, message):
    with pytest.raises(ConfigError, match=message):
        Ray().render(job(), options)


@pytest.mark.parametrize(
    "address", ["http://head:8265", "https://ray.site.example/team", "http://[::1]:8265"]
)
def test_a_handle_has_the_address(address):
    from urllib.parse import quote

    text = str(Handle("ray", quote(address.removeprefix("http://"), safe=":"), "x-7"))
    assert _address(SimpleNamespace(handle=Handle.parse(text))) == address


class Client:
    """Answer as the client of Ray's job server does; the second connection that follows the output breaks."""

    def __init__(self):
        self.whole, self.asked, self.followed = "a\nworker:0: b\nworker:0: c\nworker:0: d", 0, 0

    def get_job_logs(self, number):
        self.asked += 1
        return self.whole

    async def tail_job_logs(self, number):
        self.followed += 1
        yield "a\nworker:0: b\nwor"
        if self.followed == 2:
            raise RuntimeError("closed unexpectedly")
        yield "ker:0: c\nworker:0: d"


def test_output_that_is_followed_is_sent_once_and_a_lost_connection_repeats_no_line(monkeypatch, capsys):
    client, states = Client(), iter([State.RUNNING, State.RUNNING, State.SUCCEEDED])
    monkeypatch.setitem(sys.modules, "aiohttp", SimpleNamespace(ClientError=OSError))
    monkeypatch.setattr(engine, "needs_ray", lambda: None)
    client_module = SimpleNamespace(JobSubmissionClient=lambda address: client)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(job_submission=client_module))
    monkeypatch.setitem(sys.modules, "ray.job_submission", client_module)
    monkeypatch.setattr(follow_logs, "_SECONDS_BETWEEN_STATES", 0.0)
    monkeypatch.setattr(engine, "_SECONDS_BETWEEN_READS", 0.0)
    ray = Ray()
    monkeypatch.setattr(ray, "state", lambda _: (next(states), ""))
    submission = job().submission(Handle("ray", "head:8265", "x"))
    lines = list(ray.logs(submission, submission.tasks, follow=True))
    assert lines == [("job", "a"), ("worker:0", "b"), ("worker:0", "c"), ("worker:0", "d")]
    assert (client.followed, client.asked) == (2, 1)  # the whole at once after the end alone
    assert (
        capsys.readouterr().err == "tfdist: logs of the job: ray at http://head:8265: closed unexpectedly\n"
    )


class Answered(Exception):
    """An actor has answered after all."""


def test_a_node_that_does_not_come_back_ends_the_job(monkeypatch, tmp_path):
    ray = MagicMock()
    ray.wait = lambda refs, **_: ([], refs)
    ray.cluster_resources.return_value, ray.nodes.return_value = {"CPU": 2.0}, [{"Alive": True}]
    actor = ray.remote.return_value.options.return_value.remote.return_value
    actor.address.remote = object
    for name in (".exceptions", ".util", ".util.placement_group", ".util.scheduling_strategies", ""):
        monkeypatch.setitem(sys.modules, f"ray{name}", ray)
    for name in ("actor", "supervisor"):  # which are restored after the test
        monkeypatch.setattr(tfdist.engines.ray, name, None, raising=False)
        monkeypatch.setitem(sys.modules, f"tfdist.engines.ray.{name}", None)
        del sys.modules[f"tfdist.engines.ray.{name}"]
    supervisor = importlib.import_module("tfdist.engines.ray.supervisor")
    plan = LaunchPlan(command=("true",), counts={"ps": 1, "worker": 1}, run_dir=tmp_path, start_timeout=0.0)
    message = r"^ps:0, worker:0: no actor has started in 0 s; the cluster has 2 CPU on 1 nodes\. Start more"
    ray.placement_group_table.return_value = {"state": "RESCHEDULING"}
    with pytest.raises(TaskLost, match=message):
        supervisor.RayCluster(plan)._start_all()
    # Where all places are there, an environment that is being installed is waited for.
    ray.placement_group_table.return_value = {"state": "CREATED"}
    cluster = supervisor.RayCluster(plan)
    answers = iter([[], [], Answered])

    def wait(refs, **_):
        if next(answers) is Answered:
            raise Answered
        return [], refs

    ray.wait = wait
    with pytest.raises(Answered):
        cluster._start_all()


def test_without_ray_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(launch_on_ray.importlib.util, "find_spec", lambda name: None)
    for call in (lambda: Ray().submit(job(), {}), lambda: tfdist.ray.launch("c.yaml")):
        with pytest.raises(ConfigError, match=r"^ray: is not installed\. pip install 'tfdist\[ray\]'$"):
            call()


@pytest.mark.parametrize(
    ("what", "arguments", "message"),
    [
        (["true"], {"roles": {"worker": 0}}, r"the cluster has no worker\. Set one or more$"),
        (["true"], {"roles": {"worker": -1}}, r"received -1"),
        (
            [],
            {},
            r"^launch: expected the path of a config, a function, or the words of a command, received a list of 0$",
        ),
        (
            123,
            {},
            r"^launch: expected the path of a config, a function, or the words of a command, received 123$",
        ),
        (["true"], {"alone": "wroker"}, r"^alone: there is no 'wroker'\. Did you mean 'worker'\?$"),
        (["true"], {"args": (1,)}, r"^args: is for a function\. Leave it out$"),
        (["true"], {"changes": ["train.steps=1"]}, r"^changes: is for a config\. Leave it out$"),
        ("c.yaml", {"alone": ["worker"]}, r"^alone: is for a function\. Leave it out$"),
        (["true"], {"alone": ["wroker"]}, r"^alone: there is no 'wroker'\. Did you mean 'worker'\?$"),
        (["true"], {"alone": ["worker"]}, r"^alone: worker:0 leads the others, .*\. Leave worker out$"),
        ("none.yaml", {}, r"^none\.yaml: "),
        ("addresses.yaml", {}, r"^addresses\.yaml:1: cluster: gives addresses, but Ray chooses the machines"),
        ("elastic.yaml", {}, r"^elastic\.yaml: elastic: is for tasks that others start"),
    ],
)
def test_a_mistake_in_an_argument_is_one_line(tmp_path, monkeypatch, what, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("addresses.yaml").write_text("cluster: {worker: [a:1, b:1]}\n")
    Path("elastic.yaml").write_text("cluster: {worker: 2}\nelastic: {}\n")
    defaults = {"args": (), "roles": None, "alone": (), "changes": (), "run": RUN}
    with pytest.raises(ConfigError, match=message):
        launch_on_ray._plan_of(what, **{**defaults, **arguments})


def test_one_role_may_start_alone():
    work = launch_on_ray._plan_of(["true"], (), {"worker": 2, "ps": 1}, "worker", (), RUN)
    assert work.alone == ("worker",)


def test_importing_it_loads_no_ray():
    code = (
        "import sys, tfdist; tfdist.ray.launch; sys.exit('ray' in sys.modules or 'tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
    assert "ray" not in tfdist.__all__  # a star import must not replace Ray's own name


def test_the_configs_of_the_page_are_right(tmp_path):
    blocks = re.findall(r"```yaml\n(.*?)```", (PAGES / "ray.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        (tmp_path / "x.yaml").write_text(block)
        section = read_config(tmp_path / "x.yaml").config.engine.ray
        assert bool(section.resources) == ("ray:" in block)
        Ray().render(job(resources=section.resources), {})


@pytest.mark.parametrize("page", ["ray.md", "from_ray_train.md"])
def test_the_python_of_the_pages_compiles(page):
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, page, "exec")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("{}", 600.0),
        ("strategy: {start_timeout: 70}", 70.0),
        ("{strategy: {start_timeout: 70}, engine: {ray: {start_timeout: 5}}}", 5.0),
    ],
)
def test_a_config_may_say_how_long_to_wait_for_resources(tmp_path, text, seconds):
    path = tmp_path / "c.yaml"
    path.write_text(f"{text}\n")
    made = launch_on_ray._plan_of_config(path, None, (), RunFolder.at(str(tmp_path / "run")))
    assert made.start_timeout == seconds


def test_a_config_may_say_how_many_threads_a_task_has(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("launch: {threads: 3}\n")
    assert launch_on_ray._plan_of_config(path, None, (), RunFolder.at(str(tmp_path / "run"))).threads == 3
