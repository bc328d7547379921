"""The pods of each rendered manifest train, as containers with the names, the environment and the rules of the manifest."""

import json
import shutil
import subprocess
import sys

import pytest
from kubernetes_pods import running_pods

pytestmark = pytest.mark.engines
SECONDS = 600
CONFIG = """
cluster: {cluster}
strategy: {{name: {strategy}}}
data: {{name: digits, batch_size: 64}}
model: {{name: mnist_cnn}}
train: {{steps: {steps}, seed: 0}}
checkpoint: {{every: 50}}
evaluation: {{batches: 2}}
engine: {{kubernetes: {{image: "registry.example/train:1", env: {{TF_CPP_MIN_LOG_LEVEL: "2"}}}}}}
"""
SERVERS, MIRRORED = ("{worker: 1, ps: 1}", "parameter_server_sync"), ("{worker: 2}", "multi_worker_mirrored")

PROGRESS_SERVER = """
import http.server, json, ssl

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open("/tfdist/reports", "a") as file:
            file.write(json.dumps([self.headers["Authorization"], body]) + "\\n")
        self.send_response(200)
        self.end_headers()

server = http.server.ThreadingHTTPServer(("", 8082), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/tfdist/ca.crt", "/tfdist/key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


@pytest.fixture
def rendered(tmp_path):
    """Return a function that renders a config for an engine by the command line."""

    def render(engine, kind, steps=4):
        cluster, strategy = kind
        config = tmp_path / "train.yaml"
        config.write_text(CONFIG.format(cluster=cluster, strategy=strategy, steps=steps))
        words = [sys.executable, "-m", "tfdist", "render", engine, "--config", str(config)]
        return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout

    return render


def report(folder):
    return json.loads((folder / "runs" / "train" / "report.json").read_text())


def test_indexed_jobs_train_to_the_export_and_all_end_with_0(docker, rendered, tmp_path):
    with running_pods(docker, rendered("kubernetes", SERVERS), tmp_path / "volume") as pods:
        verdict, logs = pods.run(SECONDS), pods.logs()
        assert verdict == "succeeded", logs
        assert {pod.host: pod.statuses for pod in pods.pods} == {
            "train-chief-0": [0], "train-ps-0": [0], "train-worker-0": [0],
        }, logs  # fmt: skip
        assert all(pod.was_ready for pod in pods.pods), logs
    assert report(tmp_path / "volume")["steps"] == 4
    assert "the chief has ended, so ps:0 ends too" in logs


@pytest.mark.again
@pytest.mark.parametrize("engine", ["kubernetes", "jobset"])
def test_an_eviction_loses_no_step_and_the_others_wait_in_their_pods(docker, rendered, tmp_path, engine):
    checkpoints = tmp_path / "volume" / "runs" / "train" / "checkpoints"
    evicted = []

    def evict_once(pods):
        if not evicted and (checkpoints / "50").exists():
            evicted.append("worker")
            pods.evict("worker")

    with running_pods(docker, rendered(engine, SERVERS, steps=120), tmp_path / "volume") as pods:
        verdict, logs = pods.run(3 * SECONDS, evict_once), pods.logs()
    assert verdict == "succeeded", logs
    statuses = {pod.role: pod.statuses for pod in pods.pods}
    assert (statuses["chief"], statuses["worker"][:1], pods.restarts) == ([0], [138], 0), logs
    found = report(tmp_path / "volume")
    assert (found["steps"], found["starts"], found["steps_lost"]) == (120, 2, 0)


@pytest.mark.again
def test_mirrored_workers_of_a_jobset_find_each_other(docker, rendered, tmp_path):
    with running_pods(docker, rendered("jobset", MIRRORED), tmp_path / "volume") as pods:
        assert pods.run(SECONDS) == "succeeded", pods.logs()
        assert {pod.host: pod.statuses for pod in pods.pods} == {
            "train-worker-0-0": [0], "train-worker-0-1": [0],
        }  # fmt: skip
    assert report(tmp_path / "volume")["steps"] == 4


@pytest.mark.again
def test_a_tfjob_gives_tf_config_and_starts_a_killed_worker_again(docker, rendered, tmp_path):
    killed = []

    def kill_once(pods):
        if not killed and "worker:0 serves at" in pods.logs("worker"):
            killed.append("worker")
            pods.kill("worker")

    with running_pods(docker, rendered("tfjob", SERVERS), tmp_path / "volume") as pods:
        verdict, logs = pods.run(2 * SECONDS, kill_once), pods.logs()
    assert verdict == "succeeded", logs
    [worker] = [pod for pod in pods.pods if pod.role == "worker"]
    assert worker.statuses[0] == 137, logs
    assert "read the cluster from TF_CONFIG: 1 chief + 1 worker + 1 ps" in logs
    assert report(tmp_path / "volume")["steps"] == 4


@pytest.mark.again
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_trainjob_trains_and_its_chief_reports_the_progress(docker, rendered, tmp_path):
    volume = tmp_path / "volume"
    volume.mkdir()
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=trainer"]
    command += ["-addext", "subjectAltName=DNS:trainer.kubeflow.svc", "-keyout", volume / "key.pem"]
    subprocess.run([*command, "-out", volume / "ca.crt"], check=True, capture_output=True)
    (volume / "key.pem").chmod(0o644)
    (volume / "token").write_text("let-me-in")
    (volume / "server.py").write_text(PROGRESS_SERVER)
    added = {
        "KUBEFLOW_TRAINER_SERVER_URL": "https://trainer.kubeflow.svc:8082/train/status",
        "KUBEFLOW_TRAINER_SERVER_CA_CERT": "/tfdist/ca.crt",
        "KUBEFLOW_TRAINER_SERVER_TOKEN": "/tfdist/token",
    }
    with running_pods(docker, rendered("trainjob", SERVERS), volume, added) as pods:
        options = [f"--network={pods.network}", "--network-alias=trainer.kubeflow.svc", "--init"]
        options += [f"--volume={each}" for each in (*docker.volumes, f"{volume}:/tfdist")]
        server = ["python", "/tfdist/server.py"]
        docker.run("docker", "run", "--detach", "--name=trainer", *options, docker.image, *server)
        try:
            assert pods.run(SECONDS) == "succeeded", pods.logs()
        finally:
            docker.run("docker", "rm", "--force", "trainer")
    reports = [json.loads(line) for line in (volume / "reports").read_text().splitlines()]
    assert {authorization for authorization, _ in reports} == {"Bearer let-me-in"}
    assert reports[-1][1]["trainerStatus"]["progressPercentage"] == 100
    assert report(volume)["steps"] == 4
