"""The file for Compose that tfdist writes: its services, its mounts, and odd words in it."""

import json
import os
import re
from pathlib import Path

import pytest
import yaml

from tfdist.engines.compose import engine as compose
from tfdist.engines.compose.engine import Compose
from tfdist.engines.job_description import CONFIG, PYTHON, RUN_DIR, Job
from tfdist.engines.job_handle_and_state import State
from tfdist.errors import ConfigError
from tfdist.trainer.config import read_config
from tfdist.trainer.sections.engine import ComposeSection, EngineSection


@pytest.fixture
def rendered(tmp_path, monkeypatch):
    """Return a function that renders a job, and returns the file as Compose reads it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFDIST_CACHE_DIR", "/caches/tfdist")
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def render(
        *command,
        options=None,
        counts=None,
        config=None,
        folder="/shared/my runs",
        is_single=False,
        threads=None,
        address="",
        **section,
    ):
        job = Job(
            name="My Job",
            command=command or ("python", "x.py"),
            counts=counts or {"chief": 1, "worker": 2, "ps": 1},
            folder=Path(folder),
            made_by="tfdist render compose",
            config=config,
            is_single=is_single,
            threads=threads,
            address=address,
            section=EngineSection(compose=ComposeSection(**section)),
        )
        return yaml.safe_load(Compose().render(job, options or {}))

    return render


def sources(service):
    return {volume["source"]: volume["target"] for volume in service["volumes"]}


def test_there_is_a_service_for_each_task_and_the_others_are_its_names(rendered):
    services = rendered()["services"]
    assert sorted(services) == ["chief-0", "ps-0", "worker-0", "worker-1"]
    assert json.loads(services["worker-1"]["environment"]["TF_CONFIG"]) == {
        "cluster": {
            "chief": ["chief-0:2222"],
            "worker": ["worker-0:2222", "worker-1:2222"],
            "ps": ["ps-0:2222"],
        },
        "task": {"type": "worker", "index": 1},
    }
    assert services["worker-1"]["restart"] == "no"
    assert services["worker-1"]["environment"]["TFDIST_RESTARTS"] == 3
    assert services["worker-1"]["init"] is True
    assert services["worker-1"]["stop_grace_period"] == "60s"


def test_the_tf_config_of_a_large_cluster_is_one_line(rendered):
    made = Job("x", ("true",), {"worker": 700}, Path("/runs"), "tfdist render")
    assert made.tasks is made.tasks  # computed once, and not for each task
    lines = Compose().render(made, {}).splitlines()
    found = [line.removeprefix("      TF_CONFIG: ") for line in lines if "TF_CONFIG" in line]
    assert len(found) == 700
    indexes = [json.loads(yaml.load(line, yaml.CSafeLoader))["task"]["index"] for line in found[:3]]
    assert indexes == [0, 1, 2]
    assert all(line[0] == line[-1] == "'" for line in found)


@pytest.mark.parametrize("name", ["2024", "1e3", "null", "on", "my-job"])
def test_the_name_of_the_project_is_a_text(rendered, name):
    made = Job(name, ("true",), {"worker": 2}, Path("/runs"), "tfdist render")
    assert yaml.safe_load(Compose().render(made, {}))["name"] == name
    assert f'\nname: "{name}"\n' in Compose().render(made, {})  # Compose reads more as numbers than PyYAML


@pytest.mark.parametrize("text", ["1.10", "01234", "089", "1e3", "0o17", "-.5"])
def test_a_variable_that_looks_like_a_number_is_quoted(text):
    # Compose reads more as numbers than PyYAML.
    made = Job("x", ("true",), {"worker": 1}, Path("/runs"), "tfdist render")
    assert f"  A: '{text}'\n" in Compose().render(made, {"environment.A": text})


def test_a_task_alone_has_no_cluster(rendered):
    [service] = rendered(counts={"worker": 1}, is_single=True)["services"].values()
    assert "TF_CONFIG" not in service["environment"]
    [service] = rendered(counts={"worker": 1})["services"].values()
    assert "TF_CONFIG" in service["environment"]


def test_the_threads_of_the_config_are_those_of_each_task(rendered):
    variables = rendered(threads=3)["services"]["ps-0"]["environment"]
    assert (variables["TF_NUM_INTRAOP_THREADS"], variables["OMP_NUM_THREADS"]) == ("3", "3")
    assert "OMP_NUM_THREADS" not in rendered()["services"]["ps-0"]["environment"]


def test_the_chiefs_checkpoints_in_the_run_renew_the_restarts_of_all(rendered):
    services = rendered()["services"]
    saved = {service["environment"]["TFDIST_SAVED_STEP_FILE"] for service in services.values()}
    assert saved == {"/shared/my runs/${COMPOSE_PROJECT_NAME}/logs/saved_step"}


def test_the_secret_is_in_no_file_and_on_no_command_line(rendered, monkeypatch):
    monkeypatch.setenv("TFDIST_SECRET", "0123456789abcdef0123")
    file = rendered()
    assert file["secrets"] == {"secret": {"environment": "TFDIST_SECRET"}}
    assert file["services"]["ps-0"]["environment"]["TFDIST_SECRET_FILE"] == "/run/secrets/secret"
    assert "0123456789abcdef" not in json.dumps(file)


def test_folders_have_the_same_path_in_the_containers(rendered, tmp_path):
    service = rendered(PYTHON, "--run_dir", RUN_DIR)["services"]["ps-0"]
    assert sources(service) == {path: path for path in ("/shared/my runs", "/caches/tfdist", str(tmp_path))}
    assert service["command"][3:] == ["python", "--run_dir", "/shared/my runs/${COMPOSE_PROJECT_NAME}"]
    assert service["user"] == f"{os.getuid()}:{os.getgid()}"
    assert service["working_dir"] == str(tmp_path)
    assert all(volume["bind"] == {"create_host_path": False} for volume in service["volumes"])
    inside = rendered(folder=f"{tmp_path}/runs")["services"]["ps-0"]
    assert sources(inside).keys() == {"/caches/tfdist", str(tmp_path)}


def test_tasks_reach_the_object_store_of_a_run_and_count_restarts_in_the_folder(rendered):
    file = rendered(PYTHON, "--run_dir", RUN_DIR, address="gs://b/$r")
    service = file["services"]["ps-0"]
    assert service["command"][-1] == "gs://b/$$r/${COMPOSE_PROJECT_NAME}"
    saved = "/shared/my runs/${COMPOSE_PROJECT_NAME}/logs/saved_step"
    assert service["environment"]["TFDIST_SAVED_STEP_FILE"] == saved
    assert file["networks"] == {"tasks": {"internal": False}}
    assert rendered()["networks"] == {"tasks": {"internal": True}}
    with pytest.raises(ConfigError, match=r"^engine\.compose\.internal: is true, but the tasks must reach"):
        rendered(address="gs://b/r", internal=True)


def test_data_sets_in_the_home_folder_are_found_as_without_docker(rendered, tmp_path):
    assert "TFDS_DATA_DIR" not in rendered()["services"]["ps-0"]["environment"]
    folder = tmp_path / "home" / "tensorflow_datasets"
    folder.mkdir(parents=True)
    for section in ({}, {"code": "image"}):
        assert rendered(**section)["services"]["ps-0"]["environment"]["TFDS_DATA_DIR"] == str(folder)
    assert sources(rendered(code="image")["services"]["ps-0"])[str(folder)] == str(folder)
    elsewhere = rendered(runs="runs", cache="cache", code="image")["services"]["ps-0"]
    assert sources(elsewhere) == {"runs": "/runs", "cache": "/cache"}


def test_a_name_of_the_environment_is_a_folder_and_no_volume(rendered, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDIST_CACHE_DIR", "cache")
    monkeypatch.setenv("TFDS_DATA_DIR", "data")
    file = rendered(RUN_DIR, runs="runs", code="image")
    folders = {str(tmp_path / name) for name in ("cache", "data")}
    assert sources(file["services"]["worker-0"]) == {"runs": "/runs", **{name: name for name in folders}}
    assert file["volumes"].keys() == {"runs"}


def test_a_folder_of_an_unknown_user_is_one_line(rendered):
    message = r"^engine\.compose\.data: no home folder is known for '~no-such-user/x'\. Write the whole path$"
    with pytest.raises(ConfigError, match=message):
        rendered(RUN_DIR, data="~no-such-user/x")


def test_named_volumes_take_the_place_of_folders(rendered, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", "/data/tfds")
    file = rendered(RUN_DIR, runs="runs", cache="cache", data="tfds", code="image")
    service = file["services"]["ps-0"]
    assert sources(service) == {"runs": "/runs", "cache": "/cache", "tfds": "/data"}
    assert file["volumes"] == {name: {"name": name} for name in ("cache", "runs", "tfds")}
    assert service["command"][3:] == ["/runs/${COMPOSE_PROJECT_NAME}"]
    assert service["environment"]["TFDS_DATA_DIR"] == "/data"
    assert "user" not in service
    assert "working_dir" not in service


def test_compose_replaces_nothing_in_words_and_in_the_config(rendered, tmp_path):
    config = tmp_path / "x.yaml"
    for text in ("a: $HOME\n", " a: 'é'", "a: 1\n# ${X}\tx\n", "a: 1\n\n"):
        config.write_bytes(text.encode())
        file = rendered("echo", "$HOME", "a: b", "it's", CONFIG, config=config)
        assert file["configs"]["config"]["content"].replace("$$", "$").rstrip("\n") == text.rstrip("\n")
        assert file["services"]["ps-0"]["command"][:3] == [
            "python",
            "-m",
            "tfdist.engines.container_entrypoint",
        ]
        assert file["services"]["ps-0"]["command"][3:] == [
            "echo",
            "$$HOME",
            "a: b",
            "it's",
            "/etc/tfdist/config.yaml",
        ]


def test_options_are_keys_of_the_section_or_of_a_service(rendered):
    options = {"image": "b:2", "restarts": "0", "worker:cpus": "1.5", "mem_limit": "8g"}
    services = rendered(options=options, image="a", service={"cap_drop": ["ALL"], "ps:cpus": 1})["services"]
    assert {service["image"] for service in services.values()} == {"b:2"}
    assert {service["environment"]["TFDIST_RESTARTS"] for service in services.values()} == {0}
    assert [services[name].get("cpus") for name in ("chief-0", "ps-0", "worker-0")] == [None, 1, 1.5]
    assert services["chief-0"]["mem_limit"] == "8g"
    assert services["chief-0"]["cap_drop"] == ["ALL"]


@pytest.mark.parametrize(
    ("visible", "wanted"), [(None, ["0", "1", "2", "3"]), ("5,7,GPU-a,3,1", ["5", "7", "GPU-a", "3"])]
)
def test_each_task_has_gpus_of_its_own(rendered, monkeypatch, visible, wanted):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    services = rendered(gpus={"worker": 2})["services"]
    devices = {
        name: service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for name, service in services.items()
        if "deploy" in service
    }
    assert devices == {"worker-0": wanted[:2], "worker-1": wanted[2:]}


def test_gpus_that_this_shell_may_not_use_are_not_taken(rendered, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7,1")
    message = r"^engine\.compose\.gpus: expected 4 GPUs, received CUDA_VISIBLE_DEVICES=5,7,1$"
    with pytest.raises(ConfigError, match=message):
        rendered(gpus={"worker": 2})


DOCKER = """#!/bin/sh
case "$*" in
    "context show") echo default ;;
    "info "*) [ -n "$OPTIONS" ] || exit 1; echo "$OPTIONS" ;;
    "compose version "*) echo 2.30.0 ;;
    *" up "*) cat > FILE ;;
esac
"""


@pytest.mark.parametrize(
    ("options", "user"),
    [
        ('["name=seccomp,profile=builtin","name=rootless"]', "0:0"),
        ('["name=seccomp,profile=builtin"]', f"{os.getuid()}:{os.getgid()}"),
        ("", f"{os.getuid()}:{os.getgid()}"),
    ],
)
def test_the_files_of_a_run_are_the_users_with_rootless_docker_too(tmp_path, monkeypatch, options, user):
    (tmp_path / "docker").write_text(DOCKER.replace("FILE", str(tmp_path / "file.yaml")))
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("OPTIONS", options)
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    one = Job("x", command=("true",), counts={"worker": 1}, folder=tmp_path / "runs", made_by="tfdist submit")
    Compose().submit(one, {})
    assert yaml.safe_load((tmp_path / "file.yaml").read_text())["x-task"]["user"] == user


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"boss:cpus": "1"}, "engine.compose.service: expected a role of the job (chief, ps, worker) before the colon, received 'boss:cpus'"),
        ({"networks": "[a]"}, "engine.compose.service: networks is set by tfdist. Use engine.compose.internal"),
        ({"gpus": "{boss: 1}"}, "engine.compose.gpus: expected roles of the job (chief, ps, worker), received 'boss'"),
        ({"restarts": "often"}, "--option restarts=often: restarts: expected a whole number, received 'often'"),
        ({"code": "here"}, "--option code=here: code: there is no 'here'. Known: mount, image"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_option_is_one_line(rendered, options, message):
    with pytest.raises(ConfigError) as caught:
        rendered(options=options)
    assert str(caught.value).startswith(message)


def container(status, code=0, finished="1", is_out_of_memory=False):
    return {
        "State": {
            "Status": status,
            "ExitCode": code,
            "FinishedAt": finished,
            "OOMKilled": is_out_of_memory,
        },
        "Config": {"Labels": {"com.docker.compose.service": f"worker-{finished}"}},
    }


@pytest.mark.parametrize(
    ("containers", "state"),
    [
        ([container("created"), container("created")], (State.PENDING, "created")),
        ([container("running"), container("exited", 3)], (State.RUNNING, "1 of 2 containers run")),
        ([container("exited"), container("exited")], (State.SUCCEEDED, "exited with 0")),
        ([container("exited", 138, "1"), container("exited", 3, "2")], (State.FAILED, "worker-2 exited with 3")),
        ([container("exited", 255), container("exited", 137)], (State.FAILED, "worker-1 exited with 255")),
        ([container("exited", 137, "1", True)], (State.FAILED, "worker-1 exited with 137")),
        ([container("exited", 138), container("exited", 137), container("exited")], (State.CANCELLED, "stopped")),
        (
            [container("exited", 0, "0"), container("exited", 137, "1"), container("exited", 143, "2")],
            (State.SUCCEEDED, "worker-0 exited with 0; stopped or killed: worker-1, worker-2"),
        ),
        ([container("exited", 0, "0"), container("exited", 137, "1", True)], (State.FAILED, "worker-1 exited with 137")),
        ([container("exited", 0, "1"), container("exited", 137, "0")], (State.CANCELLED, "stopped")),
    ],
)  # fmt: skip
def test_the_state_of_a_job_is_that_of_its_containers(containers, state):
    assert compose._state_of(containers) == state


def test_the_configs_of_the_page_are_right(tmp_path, rendered):
    page = Path(__file__).parents[4] / "docs" / "engines" / "compose.md"
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        (tmp_path / "x.yaml").write_text(block)
        section = read_config(tmp_path / "x.yaml").config.engine.compose
        rendered(**{name: getattr(section, name) for name in section.__struct_fields__})


def test_gpus_are_added_to_what_a_service_deploys(rendered):
    limits = {"resources": {"limits": {"memory": "8g"}}}
    options = {"deploy": json.dumps(limits), "worker:deploy": '{"labels": {"a": "b"}}'}
    deployed = rendered(gpus={"worker": 1}, options=options)["services"]["worker-0"]["deploy"]
    assert deployed["labels"] == {"a": "b"}
    assert deployed["resources"]["limits"] == {"memory": "8g"}
    assert deployed["resources"]["reservations"]["devices"]
