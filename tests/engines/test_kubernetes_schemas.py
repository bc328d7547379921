"""What tfdist writes for Kubernetes passes the strict schemas of Kubernetes 1.37 and the models of Kubeflow."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tfdist.engines.find_engine import find_engine
from tfdist.engines.job_description import CONFIG, PYTHON, RUN_DIR, Job
from tfdist.trainer.config import read_config
from tfdist.trainer.sections.engine import EngineSection

pytestmark = pytest.mark.engines
ENGINES = ("kubernetes", "jobset", "tfjob", "trainjob")
KUBERNETES = "1.37"

CLUSTERS = {
    "workers": {"worker": 2},
    "all": {"chief": 1, "evaluator": 1, "ps": 1, "worker": 2},
}
SECTIONS = {
    "least": "{image: r/x:1}",
    "most": """
      image: r/x:1
      namespace: ml
      resources: {all: {cpu: 2, memory: 4Gi}, worker: {cpu: 500m, gpus: 1}}
      volume: {claim: mine, size: 1Ti, storage_class: nfs, access_mode: ReadWriteOnce}
      env: {TF_CPP_MIN_LOG_LEVEL: "2"}
      node_selector: {disk: ssd}
      tolerations: [{key: gpu, effect: NoSchedule}, {key: team, operator: Equal, value: ml}]
      service_account: trainer
      image_pull_secrets: [pull]
      restarts: 0
    """,
}

CASES = [("workers", "least"), ("all", "most")]


def rendered(engine, tmp_path, counts, section, alone):
    path = tmp_path / "train.yaml"
    path.write_text(f"engine:\n  kubernetes: {section}\n")
    job = Job(
        name="train",
        command=(PYTHON, "-m", "tfdist.train", "--config", CONFIG, "--run_dir", RUN_DIR),
        counts=counts,
        folder=Path("runs").absolute(),
        made_by="tfdist render",
        config=path,
        section=EngineSection(kubernetes=read_config(path).config.engine.kubernetes),
        alone=alone,
    )
    return list(yaml.safe_load_all(find_engine(engine).render(job, {})))


@pytest.mark.parametrize(("cluster", "section"), CASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_manifests_pass_the_strict_schemas(engine, cluster, section, tmp_path):
    validate = pytest.importorskip("kubernetes_validate", reason="pip install 'tfdist[engines]'").validate
    documents = rendered(engine, tmp_path, CLUSTERS[cluster], SECTIONS[section], alone=("worker",))
    parts = [part for document in documents for part in parts_of(document)]
    assert {"Secret", "NetworkPolicy", "PersistentVolumeClaim", "ConfigMap"} < {
        part["kind"] for part in parts
    }
    assert sum(part["kind"] in ("Job", "Pod") for part in parts) == len(CLUSTERS[cluster])
    for part in parts:
        validate(part, KUBERNETES, strict=True)


def parts_of(document):
    """Yield the parts of a document that Kubernetes itself defines; kinds of Kubeflow and JobSet contain some."""
    kind, spec = document["kind"], document.get("spec", {})
    named = {"name": "x"}
    if kind == "ClusterTrainingRuntime":
        spec = spec["template"]["spec"]
    if kind in ("JobSet", "ClusterTrainingRuntime"):
        for one in spec["replicatedJobs"]:
            job = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": named,
                "spec": one["template"]["spec"],
            }
            yield job
    elif kind == "TFJob":
        for replica in spec["tfReplicaSpecs"].values():
            pod = replica["template"]
            metadata = {**named, **pod["metadata"]}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}
    elif kind != "TrainJob":
        yield document


@pytest.mark.parametrize(("cluster", "section"), CASES)
@pytest.mark.parametrize("engine", ["jobset", "trainjob"])
def test_models_of_kubeflow_trainer_lose_nothing(engine, cluster, section, tmp_path):
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install 'tfdist[engines]'")
    documents = rendered(engine, tmp_path, CLUSTERS[cluster], SECTIONS[section], alone=("worker",))
    kinds = {
        "JobSet": models.JobsetV1alpha2JobSet,
        "ClusterTrainingRuntime": models.TrainerV1alpha1ClusterTrainingRuntime,
        "TrainJob": models.TrainerV1alpha1TrainJob,
    }
    own = [document for document in documents if document["kind"] in kinds]
    assert len(own) == (1 if engine == "jobset" else 2)
    for document in own:
        # A key that the model does not know would be lost.
        assert kinds[document["kind"]].from_dict(document).to_dict() == document


@pytest.mark.parametrize(("cluster", "section"), CASES)
def test_models_of_kubeflow_training_lose_nothing(cluster, section, tmp_path):
    training = pytest.importorskip("kubeflow.training.models", reason="pip install 'tfdist[engines]'")
    client = pytest.importorskip("kubernetes.client", reason="pip install 'tfdist[engines]'")
    for name in dir(training):
        if name.startswith("KubeflowOrgV1"):
            setattr(client.models, name, getattr(training, name))
    documents = rendered("tfjob", tmp_path, CLUSTERS[cluster], SECTIONS[section], alone=())
    [document] = [document for document in documents if document["kind"] == "TFJob"]

    api = client.ApiClient()
    model = api.deserialize(SimpleNamespace(data=json.dumps(document)), "KubeflowOrgV1TFJob")
    assert api.sanitize_for_serialization(model) == document
