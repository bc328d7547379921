"""The pods of each rendered manifest train, as containers with the names, the environment and the rules of the manifest."""

import json
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
