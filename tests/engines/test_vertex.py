"""`tfdist submit vertex` with Google's own clients, against servers on this machine that speak their protocols."""

import contextlib
import json
import os
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tfdist.engines.clouds.vertex import Vertex
from tfdist.engines.job_description import Job
from tfdist.engines.job_handle_and_state import State
from tfdist.errors import ConfigError
from tfdist.trainer.sections.engine import EngineSection, VertexSection

pytestmark = [
    pytest.mark.engines,
    pytest.mark.filterwarnings("ignore::FutureWarning:google"),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning"
    ),  # of Google's packages, which are not ours to mend
]
pytest.importorskip("google.cloud.aiplatform_v1", reason="pip install 'tfdist[vertex]'")
pytest.importorskip("google.cloud.logging", reason="pip install 'tfdist[vertex]'")

import grpc  # noqa: E402
from google.api_core.client_options import ClientOptions  # noqa: E402
from google.auth.credentials import AnonymousCredentials  # noqa: E402
from google.cloud import aiplatform_v1, logging  # noqa: E402
from google.protobuf import empty_pb2  # noqa: E402

SERVICE = "google.cloud.aiplatform.v1.JobService"
JOB = "projects/my-project/locations/us-central1/customJobs/77"


class JobService:
    """Answer three methods of Vertex AI's JobService, by its own messages."""

    def __init__(self):
        self.created, self.cancelled, self.state, self.refusal = None, None, "JOB_STATE_PENDING", None

    def create(self, request, context):
        if self.refusal:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.refusal)
        self.created = request
        return aiplatform_v1.CustomJob(name=JOB)

    def get(self, request, context):
        if request.name != JOB:
            context.abort(grpc.StatusCode.NOT_FOUND, "The CustomJob does not exist.")
        error = {"message": "out of memory"} if self.state == "JOB_STATE_FAILED" else None
        return aiplatform_v1.CustomJob(name=JOB, state=self.state, error=error)

    def cancel(self, request, context):
        self.cancelled = request.name
        return empty_pb2.Empty()

    def handlers(self):
        types = aiplatform_v1.types
        job = types.CustomJob.serialize
        methods = {
            "CreateCustomJob": (self.create, types.CreateCustomJobRequest, job),
            "GetCustomJob": (self.get, types.GetCustomJobRequest, job),
            "CancelCustomJob": (self.cancel, types.CancelCustomJobRequest, empty_pb2.Empty.SerializeToString),
        }
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                name: grpc.unary_unary_rpc_method_handler(
                    method, request_deserializer=request.deserialize, response_serializer=serialize
                )
                for name, (method, request, serialize) in methods.items()
            },
        )


class Web(BaseHTTPRequestHandler):
    """Answer uploads to Cloud Storage, and reads of Cloud Logging."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.requests.append((self.path, body))
        answer = self.server.entries if "/entries:list" in self.path else {"name": "secret"}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving_web():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Web)
    server.requests, server.entries = [], {"entries": []}
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Here(Vertex):
    """Connect Google's clients to this machine."""

    def __init__(self, port, web):
        self._port, self._web = port, web

    def _client(self, region):
        assert region == "us-central1"
        transport = aiplatform_v1.services.job_service.transports.JobServiceGrpcTransport(
            channel=grpc.insecure_channel(f"127.0.0.1:{self._port}")
        )
        return aiplatform_v1.JobServiceClient(transport=transport)

    def _log_client(self, project):
        options = ClientOptions(api_endpoint=f"http://127.0.0.1:{self._web.server_port}")
        return logging.Client(
            project=project, credentials=AnonymousCredentials(), client_options=options, _use_grpc=False
        )


@pytest.fixture
def vertex(monkeypatch):
    """Return the engine, the job service and the web server."""
    service, grpc_server = JobService(), grpc.server(futures.ThreadPoolExecutor(2))
    grpc_server.add_generic_rpc_handlers((service.handlers(),))
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    grpc_server.start()
    try:
        with serving_web() as web:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{web.server_port}")
            yield Here(port, web), service, web
    finally:
        grpc_server.stop(None).wait()


def job(**section):
    here = {"project": "my-project", "region": "us-central1", "image": "i", "output": "gs://bucket/runs"}
    return Job(
        name="cifar",
        command=("python", "my_script.py"),
        counts={"chief": 1, "ps": 1, "worker": 2},
        folder=Path("runs").absolute(),
        made_by="tfdist submit vertex",
        section=EngineSection(vertex=VertexSection(**{**here, **section})),
    )


def test_a_job_is_created_as_it_is_rendered_and_its_secret_is_in_the_bucket_alone(vertex):
    engine, service, web = vertex
    submission = engine.submit(job(accelerator_type={"worker": "NVIDIA_TESLA_T4"}, spot=True, timeout=90), {})
    assert str(submission.handle) == "vertex://my-project.us-central1/77"
    assert submission.tasks == ("chief:0", "worker:0", "worker:1", "ps:0")
    created = service.created.custom_job
    assert service.created.parent == "projects/my-project/locations/us-central1"
    assert submission.place == created.job_spec.base_output_directory.output_uri_prefix
    pools = created.job_spec.worker_pool_specs
    assert [pool.replica_count for pool in pools] == [1, 2, 1]
    assert pools[1].machine_spec.accelerator_type.name == "NVIDIA_TESLA_T4"
    assert created.job_spec.scheduling.strategy.name == "SPOT"
    assert created.job_spec.scheduling.timeout.seconds == 90
    [(path, body)] = web.requests
    assert path.startswith("/upload/storage/v1/b/bucket/o")
    assert f"runs/{submission.name}/secret" in body
    secret = body.split("\r\n\r\n")[2].split("\r\n")[0]
    assert len(secret) == 64
    assert secret not in str(created)


def test_a_field_that_vertex_ai_does_not_have_is_one_line(vertex):
    engine, service, web = vertex
    with pytest.raises(ConfigError, match=r"engine\.vertex\.request: .*enableWebAcces"):
        engine.submit(job(request={"jobSpec": {"enableWebAcces": True}}), {})
    assert service.created is None
    assert not web.requests


def test_a_refusal_of_vertex_ai_is_one_line(vertex):
    engine, service, _ = vertex
    service.refusal = "Machine type n1 is not supported."
    with pytest.raises(ConfigError, match=r"^vertex: Machine type n1 is not supported\.$"):
        engine.submit(job(secret=False), {})


def test_states_and_the_end_of_a_job(vertex):
    engine, service, _ = vertex
    submission = engine.submit(job(secret=False), {})
    states = {"PENDING": State.PENDING, "RUNNING": State.RUNNING, "SUCCEEDED": State.SUCCEEDED}
    for name, state in states.items():
        service.state = f"JOB_STATE_{name}"
        assert engine.state(submission) == (state, service.state)
    service.state = "JOB_STATE_FAILED"
    assert engine.state(submission) == (State.FAILED, "JOB_STATE_FAILED: out of memory")
    engine.cancel(submission)
    assert service.cancelled == JOB


def test_every_state_of_the_client_is_known():
    from tfdist.engines.clouds.vertex import _STATES

    names = {state.name for state in aiplatform_v1.JobState} - {"JOB_STATE_UNSPECIFIED"}
    assert names == set(_STATES)


def test_lines_of_cloud_logging_have_the_names_of_tasks(vertex):
    engine, service, web = vertex
    submission = engine.submit(job(secret=False), {})
    service.state = "JOB_STATE_SUCCEEDED"
    web.entries = {
        "entries": [entry("a", "workerpool1-1", {"message": "one\ntwo"}), entry("b", "workerpool2-0", None)]
    }
    wanted = [("worker:1", "one"), ("worker:1", "two"), ("ps:0", "text")]
    assert list(engine.logs(submission, ("worker:1", "ps:0"), follow=True)) == wanted
    [(_, body)] = web.requests
    asked = json.loads(body)["filter"]
    assert 'resource.labels.job_id="77"' in asked
    assert 'resource.labels.task_name=("workerpool1-1" OR "workerpool2-0")' in asked


def test_the_last_lines_are_asked_for_alone(vertex):
    engine, _, web = vertex
    submission = engine.submit(job(secret=False), {})
    web.entries = {
        "entries": [entry("b", "workerpool0-0", None), entry("a", "workerpool0-0", {"message": "one"})]
    }
    assert engine.last_lines(submission, "chief:0") == ["one", "text"]
    [(_, body)] = web.requests
    assert json.loads(body)["orderBy"] == "timestamp desc"


def entry(identity, task, payload):
    return {
        "insertId": identity,
        "logName": "projects/my-project/logs/stdout",
        "timestamp": "2026-01-01T00:00:00.5Z",
        "resource": {"type": "ml_job", "labels": {"job_id": "77", "task_name": task}},
        **({"textPayload": "text"} if payload is None else {"jsonPayload": payload}),
    }


def test_without_credentials_there_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    assert "GOOGLE_CLOUD_PROJECT" not in os.environ
    with pytest.raises(ConfigError, match=r"vertex: .*missing\.json was not found.*gcloud auth"):
        Vertex().submit(job(), {})
