"""`tfdist submit sagemaker` with AWS's own client: its model checks each request and each answer."""

import json
import re
from pathlib import Path

import pytest

from tfdist.engines.clouds.sagemaker import SageMaker
from tfdist.engines.job_description import Job
from tfdist.engines.job_handle_and_state import Handle, State, Submission
from tfdist.errors import ConfigError
from tfdist.trainer.sections.engine import EngineSection, SageMakerSection

pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore")]
boto3 = pytest.importorskip("boto3", reason="pip install 'tfdist[sagemaker]'")

from botocore.stub import ANY, Stubber  # noqa: E402

REGION = "us-east-1"
ARN = "arn:aws:sagemaker:us-east-1:123456789012:training-job/cifar-7"
GROUP = "/aws/sagemaker/TrainingJobs"
SUBMISSION = Submission(
    Handle("sagemaker", REGION, "cifar-7"),
    "cifar-7",
    Path("/opt/ml"),
    ("chief:0", "worker:0"),
    "tfdist submit",
)


class Stubbed(SageMaker):
    """Connect to botocore's Stubber, in place of the network."""

    def __init__(self):
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": REGION}
        self.clients = {name: boto3.client(name, **keys) for name in ("sagemaker", "s3", "logs")}
        self.stubs = {name: Stubber(client) for name, client in self.clients.items()}

    def _client(self, service, region):
        assert region in ("", REGION)
        return self.clients[service]


@pytest.fixture
def engine():
    """Return the engine; all answers that the test has prepared must be used."""
    made = Stubbed()
    for stub in made.stubs.values():
        stub.activate()
    yield made
    for stub in made.stubs.values():
        stub.assert_no_pending_responses()


def job(counts=None, **section):
    here = {
        "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/tfdist:1",
        "role": "arn:aws:iam::123456789012:role/training",
        "output": "s3://bucket/runs",
    }
    return Job(
        name="cifar",
        command=("python", "my_script.py"),
        counts=counts or {"chief": 1, "ps": 1, "worker": 2},
        folder=Path("runs").absolute(),
        made_by="tfdist submit sagemaker",
        section=EngineSection(sagemaker=SageMakerSection(**{**here, **section})),
    )


EVERYTHING = {
    "instance_type": {"chief": "ml.m5.large", "ps": "ml.r5.xlarge", "worker": "ml.g5.xlarge"},
    "spot": True,
    "channels": {"images": "s3://bucket/images"},
    "subnets": ["subnet-1"],
    "security_groups": ["sg-1"],
    "tags": {"team": "a"},
    "request": {"OutputDataConfig": {"CompressionType": "NONE"}},
}


def test_a_job_is_created_and_its_secret_is_in_the_bucket_alone(engine):
    engine.stubs["s3"].add_response("put_object", {}, {"Bucket": "bucket", "Key": ANY, "Body": ANY})
    requests = []
    engine.clients["sagemaker"].meta.events.register(
        "provide-client-params.*", lambda params, **_: requests.append(params)
    )
    engine.clients["s3"].meta.events.register(
        "provide-client-params.*", lambda params, **_: requests.append(params)
    )
    engine.stubs["sagemaker"].add_response("create_training_job", {"TrainingJobArn": ARN})
    submission = engine.submit(job(**EVERYTHING), {})
    put, created = requests
    assert str(submission.handle) == f"sagemaker://{REGION}/{created['TrainingJobName']}"
    assert put["Key"] == f"runs/{submission.name}/secret/secret"
    [channel] = [each for each in created["InputDataConfig"] if each["ChannelName"] == "tfdist"]
    assert f"s3://bucket/{put['Key']}".startswith(channel["DataSource"]["S3DataSource"]["S3Uri"])
    secret = put["Body"].getvalue().decode()
    assert len(secret) == 64
    assert secret not in json.dumps(created)
    assert created["OutputDataConfig"] == {"S3OutputPath": "s3://bucket/runs", "CompressionType": "NONE"}
    assert submission.place == f"s3://bucket/runs/{submission.name}"


@pytest.mark.parametrize(
    "wanted", [{}, EVERYTHING, {"counts": {"worker": 4}}, {"secret": False, "retries": 0}]
)
def test_requests_keep_to_the_model_of_the_service(wanted):
    """Check lengths, patterns and enumerations too, which the client leaves to the service."""
    model = boto3.client("sagemaker", region_name=REGION).meta.service_model
    request = json.loads(SageMaker().render(job(**wanted), {}))
    faults = list(_faults(request, model.operation_model("CreateTrainingJob").input_shape, ""))
    assert not faults


def test_the_check_finds_faults():
    shape = (
        boto3.client("sagemaker", region_name=REGION)
        .meta.service_model.operation_model("CreateTrainingJob")
        .input_shape
    )
    request = json.loads(SageMaker().render(job(), {}))
    request["TrainingJobName"] += "_" * 99
    request["ResourceConfig"]["InstanceGroups"][0]["InstanceType"] = "ml.none"
    request["Environment"]["A"] = "x" * 513
    request["Unknown"] = 1
    del request["RoleArn"]
    assert len(list(_faults(request, shape, ""))) == 6


def _faults(value, shape, place):
    """Yield what the model of the service does not allow in a value."""
    kind, limits = shape.type_name, shape.metadata
    if kind == "structure":
        yield from (f"{place}: unknown {name}" for name in value if name not in shape.members)
        yield from (f"{place}: no {name}" for name in shape.required_members if name not in value)
        for name in value:
            if name in shape.members:
                yield from _faults(value[name], shape.members[name], f"{place}.{name}")
    elif kind == "list":
        for each in value:
            yield from _faults(each, shape.member, f"{place}[]")
    elif kind == "map":
        for key, each in value.items():
            yield from _faults(key, shape.key, f"{place} key")
            yield from _faults(each, shape.value, f"{place}.{key}")
    elif kind == "string":
        if limits.get("enum") and value not in limits["enum"]:
            yield f"{place}: {value}"
        pattern = limits.get("pattern", ".*")
        if r"\p" not in pattern and not re.fullmatch(pattern, value, re.DOTALL):
            yield f"{place}: does not match {pattern}"
    size = value if kind in ("integer", "long") else len(value) if kind in ("string", "list", "map") else None
    if size is not None and not limits.get("min", size) <= size <= limits.get("max", size):
        yield f"{place}: {size}"


def test_what_the_client_refuses_is_one_line():
    engine = Stubbed()
    engine.stubs["sagemaker"].activate()
    engine.stubs["sagemaker"].add_response("create_training_job", {"TrainingJobArn": ARN})
    with pytest.raises(
        ConfigError, match='sagemaker: Parameter validation failed: Unknown parameter in input: "Typo"'
    ):
        engine.submit(job(secret=False, request={"Typo": 1}), {})


def test_what_the_service_refuses_is_one_line(engine):
    engine.stubs["sagemaker"].add_client_error(
        "create_training_job", "ResourceLimitExceeded", "The limit is 0."
    )
    with pytest.raises(ConfigError, match=r"sagemaker: .*ResourceLimitExceeded.*: The limit is 0\."):
        engine.submit(job(secret=False), {})


@pytest.mark.parametrize(
    ("status", "detail", "reason", "state"),
    [
        ("InProgress", "Downloading", None, State.PENDING),
        ("InProgress", "Training", None, State.RUNNING),
        ("Completed", "Completed", None, State.SUCCEEDED),
        ("Failed", "Failed", "AlgorithmError: worker:1 is lost", State.FAILED),
        ("Stopping", "Stopping", None, State.RUNNING),
        ("Stopped", "MaxRuntimeExceeded", None, State.CANCELLED),
    ],
)
def test_states(engine, status, detail, reason, state):
    answer = described(status, detail)
    if reason:
        answer["FailureReason"] = reason
    engine.stubs["sagemaker"].add_response("describe_training_job", answer, {"TrainingJobName": "cifar-7"})
    found, words = engine.state(SUBMISSION)
    assert found == state
    assert (reason or status) in words


def described(status, detail):
    return {
        "TrainingJobName": "cifar-7",
        "TrainingJobArn": ARN,
        "ModelArtifacts": {"S3ModelArtifacts": "s3://bucket/runs/cifar-7/output/model.tar.gz"},
        "TrainingJobStatus": status,
        "SecondaryStatus": detail,
        "StoppingCondition": {"MaxRuntimeInSeconds": 1},
        "CreationTime": 0,
    }


def test_a_job_is_stopped(engine):
    engine.stubs["sagemaker"].add_response("stop_training_job", {}, {"TrainingJobName": "cifar-7"})
    engine.cancel(SUBMISSION)


def test_lines_of_cloudwatch_have_the_names_of_tasks(engine):
    streams = {"cifar-7/algo-1-9": ("worker:0", ["a", "b\nc"]), "cifar-7/algo-2-9": ("chief:0", ["d"])}
    stub = engine.stubs["logs"]
    stub.add_response(
        "describe_log_streams",
        {"logStreams": [{"logStreamName": name} for name in streams]},
        {"logGroupName": GROUP, "logStreamNamePrefix": "cifar-7/"},
    )
    for name, (task, lines) in streams.items():
        asked = {"logGroupName": GROUP, "logStreamName": name, "startFromHead": True}
        events = [{"message": text} for text in (f"tfdist: this container is {task}", *lines)]
        stub.add_response("get_log_events", {"events": events, "nextForwardToken": "1"}, asked)
        stub.add_response(
            "get_log_events", {"events": [], "nextForwardToken": "1"}, {**asked, "nextToken": "1"}
        )
    lines = list(engine.logs(SUBMISSION, ("worker:0",), follow=False))
    assert lines == [("worker:0", line) for line in ("tfdist: this container is worker:0", "a", "b", "c")]


def test_the_last_lines_are_those_of_all_containers(engine):
    streams = {
        "cifar-7/algo-1-9": ["a"],
        "cifar-7/algo-2-9": ["step 1 of 4 (25 %)", "step 2 of 4 (50 %)\nmore"],
    }
    stub = engine.stubs["logs"]
    stub.add_response("describe_log_streams", {"logStreams": [{"logStreamName": name} for name in streams]})
    for name, texts in streams.items():
        asked = {"logGroupName": GROUP, "logStreamName": name, "limit": 200}
        stub.add_response("get_log_events", {"events": [{"message": text} for text in texts]}, asked)
    lines = engine.last_lines(SUBMISSION, "chief:0")
    assert lines == ["a", "step 1 of 4 (25 %)", "step 2 of 4 (50 %)", "more"]


def test_a_job_that_has_not_printed_has_no_lines(engine):
    engine.stubs["logs"].add_client_error("describe_log_streams", "ResourceNotFoundException", "no group")
    assert engine.last_lines(SUBMISSION, "chief:0") == []
    engine.stubs["logs"].add_client_error("describe_log_streams", "ResourceNotFoundException", "no group")
    assert list(engine.logs(SUBMISSION, ("worker:0",), follow=False)) == []


def test_without_a_region_there_is_one_line(monkeypatch):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(
        ConfigError, match=r"^sagemaker: You must specify a region\. Set engine\.sagemaker\.region, or "
    ):
        SageMaker().submit(job(), {})
