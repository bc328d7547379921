"""`tfdist submit` and the commands that take its handle, with the real kubectl, to an emulator of the API server."""

import importlib.util
import json
import shutil
import subprocess
import sys

import pytest
from kubernetes_api import api_server

from tfdist.engines.find_engine import find_engine
from tfdist.engines.job_handle_and_state import Handle
from tfdist.engines.submitted_jobs import find_submission

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(
        importlib.util.find_spec("kmock") is None or shutil.which("kubectl") is None,
        reason="pip install 'tfdist[engines]', with its bin in PATH",
    ),
]
ENGINES = {
    "kubernetes": ["Job", "Service"],
    "jobset": ["JobSet"],
    "tfjob": ["TFJob"],
    "trainjob": ["ClusterTrainingRuntime", "TrainJob"],
}
COMMON = ["ConfigMap", "NetworkPolicy", "PersistentVolumeClaim", "Secret"]
INDEX = {"batch.kubernetes.io/job-completion-index": "0"}


@pytest.fixture
def api(tmp_path):
    with api_server(tmp_path) as server:
        yield server


@pytest.fixture
def tfdist(api, tmp_path):
    """Return a function that runs a command of tfdist's."""
    (tmp_path / "train.yaml").write_text(
        "cluster: {worker: 2, ps: 1}\nengine: {kubernetes: {image: 'registry.example/train:1'}}\n"
    )

    def run(*words, status=0):
        done = subprocess.run(
            [sys.executable, "-m", "tfdist", *words],
            env=api.environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        return done.stderr if status else done.stdout.strip()

    return run


@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_is_submitted_and_cancelled(engine, api, tfdist):
    handle = tfdist("submit", engine, "--config", "train.yaml")
    name = handle.removeprefix(f"{engine}://default@here/")
    assert name.startswith("train-")
    assert sorted(api.kinds()) == sorted([*COMMON, *ENGINES[engine]])
    assert f"pending ({name}" in tfdist("status", handle)
    tfdist("cancel", handle)
    assert api.kinds() == {"PersistentVolumeClaim": ["tfdist"]}  # it outlives the job
    assert "cancelled (it was deleted)" in tfdist("status", handle)
    message = tfdist("cancel", handle, status=2)
    assert message == f"tfdist: {handle}: nothing of it exists: it was deleted before\n"


def test_a_later_job_with_another_size_leaves_the_claim_as_it_is(api, tfdist):
    tfdist("submit", "kubernetes", "--config", "train.yaml", "--option=volume.size=100Gi")
    tfdist("submit", "kubernetes", "--config", "train.yaml", "--option=volume.size=1Gi")
    claim = api.get("PersistentVolumeClaim", "tfdist")
    assert claim["spec"]["resources"]["requests"]["storage"] == "100Gi"
    assert len(api.kinds()["Secret"]) == 2


def test_a_handle_is_about_the_cluster_that_the_job_was_submitted_to(api, tfdist, tmp_path):
    handle = tfdist("submit", "kubernetes", "--config", "train.yaml")
    config = json.loads((tmp_path / "config").read_text())
    config["clusters"].append({"name": "other", "cluster": {"server": "http://127.0.0.1:1"}})
    config["contexts"].append(
        {"name": "a/b c", "context": {"cluster": "other", "user": "me", "namespace": "x"}}
    )
    (tmp_path / "config").write_text(json.dumps({**config, "current-context": "a/b c"}))
    assert "pending" in tfdist("status", handle)
    name = handle.rpartition("/")[2]
    api.add_pod("a", api.get("Job", f"{name}-chief")["spec"]["template"], "I lead\n", INDEX)
    assert tfdist("logs", handle, "--task=chief:0") == "I lead"
    tfdist("cancel", handle)
    assert api.kinds() == {"PersistentVolumeClaim": ["tfdist"]}
    assert "127.0.0.1:1" in tfdist("submit", "kubernetes", "--config", "train.yaml", status=2)


def test_a_handle_names_any_context(api, tfdist, tmp_path):
    config = json.loads((tmp_path / "config").read_text())
    config["contexts"][0]["name"] = config["current-context"] = "arn:aws:eks:eu-1:1:cluster/my one"
    (tmp_path / "config").write_text(json.dumps(config))
    handle = tfdist("submit", "kubernetes", "--config", "train.yaml")
    assert handle.startswith("kubernetes://default@arn:aws:eks:eu-1:1:cluster%2Fmy%20one/train-")
    tfdist("cancel", handle)


STATES = {
    "jobset": [
        ({"replicatedJobsStatus": [{"name": "ps", "ready": 1}]}, "running"),
        ({"conditions": [{"type": "Completed", "status": "True", "reason": "AllJobsCompleted"}]}, "succeeded"),
    ],
    "tfjob": [
        ({"conditions": [{"type": "Created", "status": "True"}]}, "pending"),
        ({"replicaStatuses": {"PS": {"active": 1}}}, "running"),
        ({"conditions": [{"type": "Failed", "status": "True", "message": "exit code\n1"}]}, "failed"),
    ],
    "trainjob": [
        ({"jobsStatus": [{"name": "ps", "ready": 1}]}, "running"),
        ({"conditions": [{"type": "Failed", "status": "False"}, {"type": "Complete", "status": "True"}]}, "succeeded"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("engine", STATES)
def test_the_state_is_that_of_the_conditions(engine, api, tfdist, monkeypatch):
    handle = tfdist("submit", engine, "--config", "train.yaml")
    for name in ("PATH", "KUBECONFIG", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, api.environ[name])
    submission = find_submission(Handle.parse(handle))
    for status, wanted in STATES[engine]:
        api.set_status(ENGINES[engine][-1], submission.handle.number, **status)
        state, words = find_engine(engine).state(submission)
        assert state.value == wanted
        assert words.isprintable()


def test_the_chiefs_job_decides_and_a_failed_one_is_named(api, tfdist):
    handle = tfdist("submit", "kubernetes", "--config", "train.yaml")
    name = handle.rpartition("/")[2]
    api.set_status("Job", f"{name}-ps", ready=1)
    assert "running" in tfdist("status", handle)
    failed = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}
    api.set_status("Job", f"{name}-worker", conditions=[failed])
    told = tfdist("status", handle)
    assert "running" in told
    assert f"; {name}-worker: Failed: PodFailurePolicy)" in told
    api.set_status("Job", f"{name}-chief", conditions=[failed])
    assert f"failed ({name}-" in tfdist("status", handle)
    api.set_status("Job", f"{name}-chief", conditions=[{"type": "Complete", "status": "True"}])
    assert "succeeded" in tfdist("status", handle)


def test_logs_are_those_of_all_pods_of_a_task(api, tfdist):
    handle = tfdist("submit", "kubernetes", "--config", "train.yaml")
    name, step = handle.rpartition("/")[2], "step 40 of 80 (50 %), loss 0.2\n"
    for role, pods in {
        "worker": {"a": "one\n", "b": "two\nthree"},
        "chief": {"c": f"I lead\n{step}"},
    }.items():
        template = api.get("Job", f"{name}-{role}")["spec"]["template"]
        for pod, text in pods.items():
            api.add_pod(pod, template, text, INDEX)
    template = api.get("Job", f"{name}-ps")["spec"]["template"]
    api.add_pod("d", template, "no image yet", INDEX, phase="Pending")
    assert tfdist("logs", handle, "--task", "worker:0") == "one\ntwo\nthree"
    assert tfdist("logs", handle, "--task", "worker:1") == ""
    assert "chief:0: I lead" in tfdist("logs", handle)
    api.set_status("Job", f"{name}-ps", ready=1)
    assert tfdist("status", handle).endswith("  step 40 of 80 (50 %), loss 0.2")
    api.set_status("Job", f"{name}-chief", conditions=[{"type": "Complete", "status": "True"}])
    followed = tfdist("logs", handle, "--follow").splitlines()
    assert sorted(followed) == [
        "chief:0: I lead",
        f"chief:0: {step.strip()}",
        "worker:0: one",
        "worker:0: three",
        "worker:0: two",
    ]


def test_what_the_server_refuses_is_one_line_and_leaves_nothing(api, tfdist):
    api.forget("jobset.x-k8s.io/v1alpha2/jobsets")
    message = tfdist("submit", "jobset", "--config", "train.yaml", status=2)
    assert message.startswith("tfdist: kubectl apply: ")
    assert 'no matches for kind "JobSet"' in message
    assert len(message.splitlines()) == 1
    assert "train-" not in str(api.kinds())


def test_without_kubectl_one_line_says_what_is_missing(api, tfdist, tmp_path):
    api.environ["PATH"] = str(tmp_path)
    message = tfdist("submit", "kubernetes", "--config", "train.yaml", status=2)
    assert message.startswith("tfdist: kubectl: is not found. Install it")
