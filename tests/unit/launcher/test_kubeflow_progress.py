"""Reports to Kubeflow Trainer, to a real HTTPS server on this machine."""

import http.server
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading

import pytest

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
SECONDS = 300  # a busy machine is no failure
PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs/train/status"
REPORT = """
import time
from tfdist.launcher import kubeflow_progress, report_progress

kubeflow_progress._SECONDS_BETWEEN_REPORTS = kubeflow_progress._TIMEOUT = 600
for step in range(0, 101, 10):
    report_progress(step, 100, examples_per_second=12.5, loss=0.25)
    time.sleep(0.02)
print("trained")
"""


class Server:
    """An HTTPS server that keeps what it receives.

    Attributes:
        received: The token and the body of each report.
        variables: What Trainer sets in a pod.
    """

    def __init__(self, folder, status):
        self.received = received = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append((self.path, self.headers["Authorization"], json.loads(body)))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.variables = {
            "KUBEFLOW_TRAINER_SERVER_URL": f"https://127.0.0.1:{self._server.server_address[1]}{PATH}",
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(folder / "cert.pem"),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(folder / "token"),
        }

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=trainer"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem"]
    subprocess.run([*command, "-out", folder / "cert.pem"], check=True, capture_output=True)
    (folder / "token").write_text("let-me-in\n")
    return folder


@pytest.fixture
def server(certificate, request):
    made = Server(certificate, getattr(request, "param", 200))
    yield made
    made.close()


def train(**variables):
    command = [sys.executable, "-c", REPORT]
    environ = {**os.environ, **variables}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False)


def test_the_first_pod_reports_and_the_last_report_arrives(server):
    done = train(**server.variables, JOB_COMPLETION_INDEX="0")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert 1 <= len(server.received) <= 2  # the first and the last
    for path, authorization, body in server.received:
        assert (path, authorization, set(body)) == (PATH, "Bearer let-me-in", {"trainerStatus"})
    last = server.received[-1][2]["trainerStatus"]
    assert last["progressPercentage"] == 100
    assert last["estimatedRemainingSeconds"] == 0
    assert last["metrics"] == [
        {"name": "loss", "value": "0.25"},
        {"name": "examples_per_second", "value": "12.5"},
    ]
    first = server.received[0][2]["trainerStatus"]
    assert first["lastUpdatedTime"][19] in "+-"
    assert first["lastUpdatedTime"][22] == ":"


def test_the_model_of_kubeflow_accepts_a_report(server):
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install 'tfdist[engines]'")
    train(**server.variables)
    for _, _, body in server.received:
        status = models.TrainerV1alpha1UpdateTrainJobStatusRequest.from_dict(body).to_dict()
        assert {*status["trainerStatus"]} == {*body["trainerStatus"]}
    assert server.received


def test_other_pods_report_nothing(server):
    assert train(**server.variables, JOB_COMPLETION_INDEX="1").returncode == 0
    assert server.received == []


@pytest.mark.parametrize("server", [500, 403], indirect=True)
def test_a_server_that_refuses_is_one_warning(server):
    done = train(**server.variables)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert 1 <= len(server.received) <= 2
    assert done.stderr.count("the progress cannot be reported to Kubeflow Trainer: HTTP Error") == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"KUBEFLOW_TRAINER_SERVER_TOKEN": "/nowhere"},
        {"KUBEFLOW_TRAINER_SERVER_CA_CERT": "/nowhere"},
        {"KUBEFLOW_TRAINER_SERVER_URL": "https://127.0.0.1:1/"},
        {"KUBEFLOW_TRAINER_SERVER_URL": "https://[/"},
        {"KUBEFLOW_TRAINER_SERVER_URL": "http://127.0.0.1/"},
    ],
)
def test_what_is_missing_disturbs_no_training(server, changes):
    done = train(**{**server.variables, **changes})
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert server.received == []
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_server_of_another_certificate_gets_no_token(server, tmp_path):
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=other"]
    command += ["-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"]
    subprocess.run(command, check=True, capture_output=True)
    done = train(**{**server.variables, "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(tmp_path / "cert.pem")})
    assert done.returncode == 0
    assert server.received == []
    assert "certificate verify failed" in done.stderr
