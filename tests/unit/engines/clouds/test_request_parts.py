"""The requests to Vertex AI and SageMaker that tfdist writes, and the mistakes that it refuses."""

import contextlib
import json
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

from tfdist.engines import follow_logs
from tfdist.engines.clouds import vertex as vertex_module
from tfdist.engines.clouds.sagemaker import SageMaker
from tfdist.engines.clouds.vertex import Vertex
from tfdist.engines.job_description import CONFIG, PYTHON, RUN_DIR, Job
from tfdist.engines.job_handle_and_state import Handle, State, Submission
from tfdist.errors import ConfigError
from tfdist.strategies.strategy_names import roles_started_alone
from tfdist.trainer.config import read_config
from tfdist.trainer.sections.engine import EngineSection, SageMakerSection, VertexSection

COUNTS = {"chief": 1, "worker": 2, "ps": 1}
TRAIN = (PYTHON, "-m", "tfdist.train", "--config", CONFIG, "--run_dir", RUN_DIR, "--set=train.steps=9")
VERTEX = {"image": "region-docker.pkg.dev/p/r/tfdist:1", "output": "gs://bucket/runs"}
SAGEMAKER = {
    "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/tfdist:1",
    "role": "arn:aws:iam::123456789012:role/training",
    "output": "s3://bucket/runs",
}


def job(counts=COUNTS, command=("python", "my_script.py"), config=None, folder="runs", alone=(), **sections):
    return Job(
        name="My_cifar",
        command=TRAIN if config else command,
        counts=counts,
        folder=Path(folder).absolute(),
        made_by="tfdist submit",
        config=config,
        section=EngineSection(**sections),
        alone=alone,
    )


def vertex(options=(), counts=COUNTS, config=None, alone=(), folder="runs", **section):
    wanted = job(
        counts, config=config, alone=alone, folder=folder, vertex=VertexSection(**{**VERTEX, **section})
    )
    return json.loads(Vertex().render(wanted, dict(options)))


def sagemaker(options=(), counts=COUNTS, config=None, folder="runs", **section):
    wanted = job(counts, config=config, folder=folder, sagemaker=SageMakerSection(**{**SAGEMAKER, **section}))
    return json.loads(SageMaker().render(wanted, dict(options)))


def variables(request):
    [container] = {
        json.dumps(pool["containerSpec"]) for pool in request["jobSpec"]["workerPoolSpecs"] if pool
    }
    container = json.loads(container)
    return {pair["name"]: pair["value"] for pair in container["env"]}, container


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "cifar.yaml"
    path.write_text("# é\n" * 300 + "train: {steps: 5}\n")
    return path


# -- Vertex AI --


@pytest.mark.parametrize(
    ("counts", "replicas"),
    [
        ({"chief": 1, "ps": 1, "worker": 2}, [1, 2, 1]),
        ({"chief": 1, "ps": 1, "worker": 2, "evaluator": 1}, [1, 2, 1, 1]),
        ({"worker": 4, "evaluator": 1}, [1, 3, None, 1]),
        ({"worker": 1}, [1]),
    ],
)
def test_the_pools_are_chief_workers_ps_and_evaluator(counts, replicas):
    request = vertex(counts=counts)
    assert [pool.get("replicaCount") for pool in request["jobSpec"]["workerPoolSpecs"]] == replicas


def test_where_there_is_no_chief_a_worker_becomes_it(config):
    found, container = variables(vertex(counts={"worker": 4}, config=config))
    assert found["TFDIST_ROLES"] == "chief=1,worker=3"
    assert container["args"][-1] == '--set=cluster={"chief": 1, "worker": 3}'
    changed = read_config(config, [container["args"][-1].removeprefix("--set=")])
    assert (changed.config.cluster.chief, changed.config.cluster.worker) == (1, 3)


def test_a_job_of_vertex_ai_has_a_folder_and_the_secret_is_a_file_in_it(config):
    request = vertex(config=config)
    name = request["displayName"]
    assert re.fullmatch(r"my-cifar-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}", name)
    assert request["jobSpec"]["baseOutputDirectory"] == {"outputUriPrefix": f"gs://bucket/runs/{name}"}
    found, container = variables(request)
    assert found["TFDIST_SECRET_FILE"] == f"/gcs/bucket/runs/{name}/secret"
    assert "TFDIST_SECRET" not in found
    assert container["command"] == ["python", "-m", "tfdist.engines.container_entrypoint"]
    assert container["args"] == [
        "python", "-m", "tfdist.train", "--config", "{config}", "--set=train.steps=9",
    ]  # fmt: skip
    assert "TFDIST_SECRET_FILE" not in variables(vertex(secret=False))[0]


def test_run_dir_goes_to_the_tasks_with_a_folder_for_each_job(config):
    for render in (vertex, sagemaker):
        text = json.dumps(render(config=config, folder="/mnt/nfs/runs"))
        assert re.search(r'"--run_dir", "/mnt/nfs/runs/my-cifar-[0-9a-f-]+"', text)


def test_an_address_as_run_dir_is_the_output(config):
    wanted = replace(job(config=config, vertex=VertexSection(**VERTEX)), address="gs://other/x")
    spec = json.loads(Vertex().render(wanted, {}))["jobSpec"]
    assert spec["baseOutputDirectory"]["outputUriPrefix"].startswith("gs://other/x/my-cifar-")
    assert "--run_dir" not in json.dumps(spec)
    wanted = replace(job(config=config, sagemaker=SageMakerSection(**SAGEMAKER)), address="s3://other/x")
    request = json.loads(SageMaker().render(wanted, {}))
    assert request["OutputDataConfig"] == {"S3OutputPath": "s3://other/x"}
    wrong = replace(wanted, address="gs://other/x")
    with pytest.raises(
        ConfigError, match=r"^--run_dir: expected an address that begins with s3://, received"
    ):
        SageMaker().render(wrong, {})


def test_roles_have_machines_of_their_own():
    request = vertex(
        {"accelerator_count.worker": "2"},
        machine_type={"chief": "n1-standard-4", "ps": "n1-highmem-8", "worker": "a2-highgpu-2g"},
        accelerator_type={"worker": "NVIDIA_TESLA_A100"},
    )
    machines = [pool["machineSpec"] for pool in request["jobSpec"]["workerPoolSpecs"]]
    assert machines == [
        {"machineType": "n1-standard-4"},
        {"machineType": "a2-highgpu-2g", "acceleratorType": "NVIDIA_TESLA_A100", "acceleratorCount": 2},
        {"machineType": "n1-highmem-8"},
    ]


@pytest.mark.parametrize(
    ("section", "options", "chief", "worker"),
    [
        ({"machine_type": {"worker": "big"}}, {}, "big", "big"),
        ({}, {"worker:machine_type": "big"}, "big", "big"),
        ({}, {"chief:machine_type": "small"}, "small", "n1-standard-4"),
        ({"machine_type": {"worker": "big", "chief": "small"}}, {}, "small", "big"),
    ],
)
def test_a_chief_that_is_made_of_a_worker_has_its_machine(section, options, chief, worker):
    accelerator = {"worker:accelerator_type": "NVIDIA_TESLA_T4", "worker:accelerator_count": "2"}
    made = vertex({**options, **accelerator}, counts={"worker": 2}, **section)
    machines = [pool["machineSpec"] for pool in made["jobSpec"]["workerPoolSpecs"]]
    assert [machine["machineType"] for machine in machines] == [chief, worker]
    assert all(machine["acceleratorType"] == "NVIDIA_TESLA_T4" for machine in machines)
    assert all(machine["acceleratorCount"] == 2 for machine in machines)


def test_the_schedule_of_a_job_of_vertex_ai():
    for strategy, restarts in {"multi_worker_mirrored": True, "parameter_server": False}.items():
        scheduling = vertex(alone=roles_started_alone(strategy))["jobSpec"]["scheduling"]
        assert scheduling == {"restartJobOnWorkerRestart": restarts}
    scheduling = vertex(alone=("worker",), restart_job=True, timeout=60, spot=True)["jobSpec"]["scheduling"]
    assert scheduling == {"restartJobOnWorkerRestart": True, "timeout": "60s", "strategy": "SPOT"}


def test_fields_that_no_option_has_go_into_the_request():
    request = vertex(
        request={"jobSpec": {"enableWebAccess": True}}, labels={"team": "a"}, service_account="me@x"
    )
    assert request["labels"] == {"team": "a"}
    assert request["jobSpec"]["enableWebAccess"] is True
    assert request["jobSpec"]["serviceAccount"] == "me@x"
    assert request["jobSpec"]["workerPoolSpecs"]


def test_vertex_ai_replaces_nothing_in_the_config(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("data: {dir: $(HOME)$$}\n")
    assert variables(vertex(config=path))[0]["TFDIST_CONFIG_0"] == "data: {dir: $$(HOME)$$$$}\n"


def test_vertex_ai_replaces_nothing_in_the_command_of_the_user():
    wanted = job(command=("bash", "-c", "echo $(HOME) $$ $HOME"), vertex=VertexSection(**VERTEX))
    container = variables(json.loads(Vertex().render(wanted, {})))[1]
    assert container["args"][-1] == "echo $$(HOME) $$$$ $HOME"


# -- SageMaker --


def test_roles_are_instance_groups_of_the_same_name():
    resources = sagemaker({"worker:instance_type": "ml.g5.xlarge"})["ResourceConfig"]
    groups = {group["InstanceGroupName"]: group for group in resources["InstanceGroups"]}
    assert {name: group["InstanceCount"] for name, group in groups.items()} == COUNTS
    assert groups["worker"]["InstanceType"] == "ml.g5.xlarge"
    assert groups["ps"]["InstanceType"] == "ml.m5.xlarge"
    alone = sagemaker(counts={"worker": 4})["ResourceConfig"]
    assert alone == {"InstanceType": "ml.m5.xlarge", "InstanceCount": 4, "VolumeSizeInGB": 50}


def test_the_secret_of_a_training_job_is_an_input_channel(config):
    request = sagemaker(config=config, channels={"images": "s3://bucket/images"})
    name, environment = request["TrainingJobName"], request["Environment"]
    channels = {
        each["ChannelName"]: each["DataSource"]["S3DataSource"] for each in request["InputDataConfig"]
    }
    assert channels["tfdist"]["S3Uri"] == f"s3://bucket/runs/{name}/secret/"
    assert sorted(channels["tfdist"]["InstanceGroupNames"]) == sorted(COUNTS)
    assert channels["images"]["S3Uri"] == "s3://bucket/images"
    assert environment["TFDIST_SECRET_FILE"] == "/opt/ml/input/data/tfdist/secret"
    assert "TFDIST_SECRET" not in environment
    assert "InputDataConfig" not in sagemaker(secret=False)


def test_checkpoints_spot_and_the_network_of_a_training_job():
    request = sagemaker(spot=True, timeout=60, encrypt_traffic=True, subnets=["s"], security_groups=["g"])
    place = f"s3://bucket/runs/{request['TrainingJobName']}/checkpoints"
    assert request["CheckpointConfig"] == {"S3Uri": place, "LocalPath": "/opt/ml/checkpoints"}
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 120}
    assert request["EnableManagedSpotTraining"] is request["EnableInterContainerTrafficEncryption"] is True
    assert request["VpcConfig"] == {"Subnets": ["s"], "SecurityGroupIds": ["g"]}
    assert request["RetryStrategy"] == {"MaximumRetryAttempts": 3}
    assert "RetryStrategy" not in sagemaker(retries=0)


@pytest.mark.parametrize("render", [vertex, sagemaker])
def test_the_text_of_the_config_is_in_variables_that_both_services_take(render, config):
    request = render(config=config)
    found = request["Environment"] if render is sagemaker else variables(request)[0]
    pieces = [value for name, value in sorted(found.items()) if re.fullmatch(r"TFDIST_CONFIG_[0-9]+", name)]
    assert len(pieces) > 1
    assert all(len(piece.encode()) <= 512 for piece in pieces)
    assert "".join(pieces) == config.read_text()


# -- mistakes --


@pytest.mark.parametrize(
    ("render", "arguments", "message"),
    [
        (vertex, {"image": ""}, "engine.vertex.image: expected a value, received nothing. Set it in the config, or by --option image="),
        (vertex, {"output": "s3://a"}, "engine.vertex.output: expected an address that begins with gs://, received 's3://a'"),
        (vertex, {"options": {"machin_type": "a"}}, "--option machin_type=a: machin_type: unknown key. Did you mean 'machine_type'?"),
        (vertex, {"options": {"disk_gb": "big"}}, "--option disk_gb=big: disk_gb: expected a whole number, received 'big'"),
        (vertex, {"machine_type": {"chief": "a"}}, "engine.vertex.machine_type: has no value for the role worker. Add worker: "),
        (vertex, {"machine_type": {"boss": "a"}}, "engine.vertex.machine_type.boss: is not a role. Known: chief"),
        (sagemaker, {"role": "me"}, "engine.sagemaker.role: expected an address that begins with arn:, received 'me'"),
        (sagemaker, {"output": "s3://"}, "engine.sagemaker.output: expected an address that begins with s3://"),
        (sagemaker, {"counts": {"worker": 1, "evaluator": 1}}, "sagemaker: an evaluator reads the chief's checkpoints"),
        (sagemaker, {"env": {"A": "x" * 513}}, "engine.sagemaker.env.A: expected at most 512 characters, received 513"),
        (sagemaker, {"env": {f"A{i}": "" for i in range(100)}}, "engine.sagemaker.env: expected at most 100 variables"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(render, arguments, message):
    with pytest.raises(ConfigError) as caught:
        render(**arguments)
    assert str(caught.value).startswith(message)


def test_a_config_or_a_word_that_is_too_long_is_refused(tmp_path):
    path = tmp_path / "long.yaml"
    path.write_text("#" * 40_000)
    with pytest.raises(ConfigError, match=r"long\.yaml: expected at most 30720 bytes, received 40000"):
        vertex(config=path)
    wanted = job(command=("python", "x" * 300), sagemaker=SageMakerSection(**SAGEMAKER))
    with pytest.raises(ConfigError, match="expected at most 256 characters in a word of the command"):
        SageMaker().render(wanted, {})


class CloudLogging:
    """Answer requests as Cloud Logging does; each entry is seen only from its round on."""

    def __init__(self, *entries):
        self.entries, self.rounds = entries, 0

    def list_entries(self, *, filter_, order_by, page_size):
        assert (order_by, page_size) == ("timestamp asc", 1000)
        since = re.search(r'timestamp>="(.*?)"', filter_)
        self.rounds += 1
        found = [
            entry
            for since_round, entry in self.entries
            if since_round <= self.rounds
            and (since is None or entry.timestamp >= datetime.fromisoformat(since[1]))
        ]
        return sorted(found, key=lambda entry: entry.timestamp)


def log_entry(text, pool, second):
    labels = {"task_name": pool}
    at = datetime(2026, 1, 1, 12, 0, tzinfo=timezone.utc) + timedelta(seconds=second)
    return SimpleNamespace(
        insert_id=text, timestamp=at, payload=text, resource=SimpleNamespace(labels=labels)
    )


def test_followed_logs_have_lines_that_arrive_after_newer_ones_once(monkeypatch):
    logging = CloudLogging(
        (1, log_entry("first", "workerpool1-0", 0)),
        (1, log_entry("newer", "workerpool1-0", 20)),
        (2, log_entry("late", "workerpool2-0", 5)),
        (3, log_entry("after the end", "workerpool2-0", 4)),
    )
    states = iter([State.RUNNING, State.RUNNING, State.SUCCEEDED])
    engine = Vertex()
    monkeypatch.setattr(engine, "_log_client", lambda project: logging)
    monkeypatch.setattr(engine, "state", lambda submission: (next(states), ""))
    monkeypatch.setattr(vertex_module, "_one_line_errors", contextlib.nullcontext)
    monkeypatch.setattr(vertex_module, "_SECONDS_BETWEEN_READS", 0.0)
    monkeypatch.setattr(follow_logs, "_SECONDS_BETWEEN_STATES", 0.0)
    tasks = ("chief:0", "worker:0", "ps:0")
    submission = Submission(Handle("vertex", "p.r", "7"), "x", Path("/gcs/x"), tasks, "tfdist submit")
    assert list(engine.logs(submission, tasks, follow=True)) == [
        ("worker:0", "first"),
        ("worker:0", "newer"),
        ("ps:0", "late"),
        ("ps:0", "after the end"),
    ]


def test_a_client_that_is_not_installed_is_named_in_one_line(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"Install it: pip install 'tfdist\[sagemaker\]'"):
        SageMaker()._client("sagemaker", "us-east-1")


@pytest.mark.parametrize("name", ["vertex", "sagemaker"])
def test_the_configs_of_the_pages_are_right(name, tmp_path):
    page = Path(__file__).parents[4] / "docs" / "engines" / f"{name}.md"
    blocks = re.findall(r"^( *)```yaml\n(.*?)```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    for indent, block in blocks:
        path = tmp_path / "x.yaml"
        path.write_text(re.sub(rf"^{indent}", "", block, flags=re.MULTILINE))
        section = getattr(read_config(path).config.engine, name)
        render, given = (vertex, VERTEX) if name == "vertex" else (sagemaker, SAGEMAKER)
        values = {field: getattr(section, field) for field in section.__struct_fields__}
        render(**{**values, **{field: values[field] or given[field] for field in given}})


BOTH = {"vertex": VertexSection(**VERTEX), "sagemaker": SageMakerSection(**SAGEMAKER)}


@pytest.mark.parametrize("engine", [Vertex, SageMaker])
def test_named_jobs_are_refused_before_they_cost_anything(engine):
    wanted = job({"chief": 1, "reader": 2}, **BOTH)
    with pytest.raises(ConfigError, match=r"cluster\.jobs: expected only .*, received reader"):
        engine().render(wanted, {})


@pytest.mark.parametrize("engine", [Vertex, SageMaker])
def test_the_threads_of_the_config_are_those_of_each_task_of_a_cloud(engine):
    rendered = engine().render(replace(job(**BOTH), threads=3), {})
    assert "TF_NUM_INTRAOP_THREADS" in rendered


@pytest.mark.parametrize(
    "request_", [{"Environment": {"A": 1}}, {"AlgorithmSpecification": "x"}, {"Environment": 5}]
)
def test_a_part_of_a_request_that_is_no_text_is_one_line(request_):
    with pytest.raises(ConfigError, match=r"engine\.sagemaker\.request.*: expected a "):
        sagemaker(request=request_)
