"""The objects that tfdist writes for Kubernetes: tasks, resources, restarts, and mistakes in options."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tfdist.engines import follow_logs
from tfdist.engines.container_entrypoint import ENTRYPOINT
from tfdist.engines.find_engine import find_engine
from tfdist.engines.job_description import CONFIG, PYTHON, RUN_DIR, Job
from tfdist.engines.job_handle_and_state import Handle, State, Submission
from tfdist.engines.kubernetes import engine_base, pod_logs
from tfdist.engines.kubernetes import kubectl as kubectl_module
from tfdist.errors import ConfigError
from tfdist.trainer.config import read_config
from tfdist.trainer.sections.engine import EngineSection, KubernetesSection, ResourcesSection

ENGINES = ("kubernetes", "jobset", "tfjob", "trainjob")


def job(*command, counts=None, alone=(), config=None, name="My_train.2", **section):
    return Job(
        name=name,
        command=command or (PYTHON, "-m", "tfdist.train", "--config", CONFIG, "--run_dir", RUN_DIR),
        counts=counts or {"chief": 1, "worker": 2, "ps": 1},
        folder=Path("runs").absolute(),
        made_by="tfdist render",
        config=config,
        section=EngineSection(kubernetes=KubernetesSection(**{"image": "r/x:1", **section})),
        alone=alone,
    )


def objects(engine, job, options=()):
    text = find_engine(engine).render(job, dict(options))
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}


def pods(engine, job, options=()):
    """Return the template of the pods of each role."""
    found = objects(engine, job, options)
    name = "my-train-2"
    if engine == "kubernetes":
        return {role: found["Job", f"{name}-{role}"]["spec"]["template"] for role in job.counts}
    if engine == "tfjob":
        replicas = found["TFJob", name]["spec"]["tfReplicaSpecs"]
        return {role.lower(): replica["template"] for role, replica in replicas.items()}
    if engine == "jobset":
        spec = found["JobSet", name]["spec"]
    else:
        spec = found["ClusterTrainingRuntime", name]["spec"]["template"]["spec"]
    return {one["name"]: one["template"]["spec"]["template"] for one in spec["replicatedJobs"]}


@pytest.fixture
def config(tmp_path):
    """Return a config file, whose text needs care."""
    path = tmp_path / "mÿ run.yaml"  # which may not be the key of a ConfigMap
    path.write_text('# it\'s: a "test"\ncluster: {worker: 2, ps: 1}\n')
    return path


def passed_on(word, **variables):
    """Return what Kubernetes makes of a word: $$ is $, and $(NAME) is the value of a known variable."""
    return re.sub(r"\$\$|\$\(([^)]*)\)", lambda m: "$" if m[0] == "$$" else variables.get(m[1], m[0]), word)


@pytest.mark.parametrize("word", ["$(HOME)", "$$", "echo $$(HOME) $HOME", "$$$(HOME)$", "$($$)", "$"])
@pytest.mark.parametrize("engine", ENGINES)
def test_words_of_the_user_reach_the_tasks_as_they_are(engine, word):
    for pod in pods(engine, job("bash", "-c", word, RUN_DIR)).values():
        *words, run_dir = pod["spec"]["containers"][0]["command"]
        assert [passed_on(each, HOME="/root") for each in words] == [*ENTRYPOINT, "bash", "-c", word]
        assert passed_on(run_dir, JOBSET_NAME="my-train-2") == "/tfdist/runs/my-train-2"


@pytest.mark.parametrize("engine", ENGINES)
def test_every_pod_gets_command_config_secret_and_shared_folder(engine, config):
    made = job(config=config)
    found = objects(engine, made)
    [secret] = [one for one in found.values() if one["kind"] == "Secret"]
    assert found["ConfigMap", "my-train-2"]["data"] == {"config.yaml": config.read_text()}
    assert len(secret["stringData"]["TFDIST_SECRET"]) == 64
    run_dir = "$(JOBSET_NAME)" if engine == "trainjob" else "my-train-2"
    for role, pod in pods(engine, made).items():
        [container] = pod["spec"]["containers"]
        assert container["command"] == [
            *ENTRYPOINT,
            *("python", "-m", "tfdist.train", "--config", "/etc/tfdist/config.yaml"),
            *("--run_dir", f"/tfdist/runs/{run_dir}"),
        ]
        values = {one["name"]: one.get("value") for one in container["env"]}
        assert values["TFDIST_ROLES"] == "chief=1,ps=1,worker=2"
        assert values["TFDIST_CACHE_DIR"].startswith("/tfdist/")
        # The pod sees each new checkpoint, which renews the restarts of its task.
        assert values["TFDIST_SAVED_STEP_FILE"] == f"/tfdist/runs/{run_dir}/logs/saved_step"
        assert values["TFDIST_RESTARTS"] == "3"
        assert secret["stringData"]["TFDIST_SECRET"] not in str(pod)
        assert pod["spec"]["terminationGracePeriodSeconds"] >= 30
        assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == role
        mounted = {one["name"] for one in container["volumeMounts"]}
        assert (
            mounted == {one["name"] for one in pod["spec"]["volumes"]} == {"shared", "tmp", "shm", "config"}
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_in_an_object_store_has_its_restarts_on_the_volume(engine):
    for pod in pods(engine, replace(job(), address="gs://bucket/runs")).values():
        [container] = pod["spec"]["containers"]
        name = "$(JOBSET_NAME)" if engine == "trainjob" else "my-train-2"
        assert container["command"][-2:] == ["--run_dir", f"gs://bucket/runs/{name}"]
        saved = {"name": "TFDIST_SAVED_STEP_FILE", "value": f"/tfdist/runs/{name}/logs/saved_step"}
        assert saved in container["env"]


def test_an_error_of_kubectl_has_no_lines_of_its_log(tmp_path, monkeypatch):
    lines = 2 * ['E1129 23:35:43.965927   15152 memcache.go:381] "Unhandled" err="refused"']
    said = "\n".join([*lines, "The connection to the server was refused", "- did you mean another?"])
    (tmp_path / "kubectl").write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit 1\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    message = r"^kubectl get: The connection to the server was refused - did you mean another\?$"
    with pytest.raises(ConfigError, match=message):
        kubectl_module.run_kubectl("get", "pods")


@pytest.mark.parametrize("engine", ENGINES)
def test_only_pods_of_the_job_may_connect(engine):
    found = objects(engine, job())
    policy = found["NetworkPolicy", "my-train-2"]["spec"]
    own = policy["podSelector"]
    assert policy["ingress"] == [{"from": [{"podSelector": own}]}]
    for pod in pods(engine, job()).values():
        assert own["matchLabels"].items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_script_needs_no_config(engine):
    made = job("python", "my script.py", "--flag=$HOME")
    assert ("ConfigMap", "my-train-2") not in objects(engine, made)
    for pod in pods(engine, made).values():
        assert pod["spec"]["containers"][0]["command"] == [
            *(*ENTRYPOINT, "python", "my script.py", "--flag=$HOME")
        ]


def test_a_role_has_the_resources_of_all_that_it_does_not_name():
    resources = {"all": ResourcesSection(cpu=2, memory="1Gi"), "worker": ResourcesSection(gpus=1)}
    options = {"ps:cpu": "500m", "gpu_resource": "amd.com/gpu"}
    made = pods("jobset", job(resources=resources), options)
    asked = {role: pod["spec"]["containers"][0]["resources"] for role, pod in made.items()}
    assert asked["chief"] == {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    memory = {"memory": "1Gi"}
    assert asked["worker"] == {"requests": {"cpu": "2", **memory}, "limits": {**memory, "amd.com/gpu": "1"}}
    assert asked["ps"] == {"requests": {"cpu": "500m", **memory}, "limits": memory}
    made = pods("jobset", job(), {"all:gpus": "1", "ps:gpus": "0"})
    asked = {role: pod["spec"]["containers"][0]["resources"] for role, pod in made.items()}
    assert (asked["worker"], asked["ps"]) == ({"limits": {"nvidia.com/gpu": "1"}}, {})


def test_options_change_every_pod():
    options = {
        "image": "r/other:2",
        "service_account": "trainer",
        "image_pull_secrets": "[pull]",
        "node_selector": "{disk: ssd}",
        "tolerations": "[{key: gpu, effect: NoSchedule}]",
        "env": "{TFDS_DATA_DIR: /data}",
        "user": "7",
        "namespace": "ml",
    }
    for engine in ENGINES:
        made = {role: pod["spec"] for role, pod in pods(engine, job(), options).items()}
        for spec in made.values():
            assert spec["containers"][0]["image"] == "r/other:2"
            assert spec["serviceAccountName"] == "trainer"
            assert spec["imagePullSecrets"] == [{"name": "pull"}]
            assert spec["nodeSelector"] == {"disk": "ssd"}
            assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
            assert {"name": "TFDS_DATA_DIR", "value": "/data"} in spec["containers"][0]["env"]
            assert spec["securityContext"]["runAsUser"] == 7
        spaces = {one["metadata"].get("namespace") for one in objects(engine, job(), options).values()}
        assert spaces <= {"ml", None}


def test_more_fields_and_labels_go_where_the_user_says():
    section = {
        "labels": {"kueue.x-k8s.io/queue-name": "train", "app.kubernetes.io/name": "mine"},
        "pod": {"volumes": [{"name": "nfs"}], "securityContext": {"fsGroup": 5}},
        "container": {"volumeMounts": [{"name": "nfs", "mountPath": "/nfs"}]},
    }
    options = {
        "pod.priorityClassName": "high",
        "container.imagePullPolicy": "Always",
        "container.resources": "{limits: {cpu: 4}}",
        "labels.team.example/name": "vision",
    }
    for engine in ENGINES:
        made = job(resources={"all": ResourcesSection(cpu=2)}, **section)
        found = objects(engine, made, options)
        for (kind, _), one in found.items():
            if kind != "PersistentVolumeClaim":
                labels = one["metadata"]["labels"]
                assert (labels["kueue.x-k8s.io/queue-name"], labels["team.example/name"]) == (
                    "train",
                    "vision",
                )
                assert labels["app.kubernetes.io/name"] == "tfdist"
        for pod in pods(engine, made, options).values():
            assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "train"
            spec, container = pod["spec"], pod["spec"]["containers"][0]
            assert (spec["priorityClassName"], spec["securityContext"]["fsGroup"]) == ("high", 5)
            assert spec["securityContext"]["runAsUser"] == 1000
            assert [volume["name"] for volume in spec["volumes"]] == ["shared", "tmp", "shm", "nfs"]
            assert container["imagePullPolicy"] == "Always"
            assert container["resources"] == {"requests": {"cpu": "2"}, "limits": {"cpu": 4}}
            assert container["volumeMounts"][-1] == {"name": "nfs", "mountPath": "/nfs"}


def test_a_tfjob_leaves_its_evaluator_the_last_checkpoint():
    for counts, policy in (({"chief": 1, "worker": 1}, "Running"), ({"chief": 1, "evaluator": 1}, "None")):
        found = objects("tfjob", job(counts=counts))["TFJob", "my-train-2"]
        assert found["spec"]["runPolicy"]["cleanPodPolicy"] == policy


def test_the_claim_is_shared_and_can_be_there_already():
    found = objects("kubernetes", job(), {"volume.size": "1Ti", "volume.storage_class": "nfs"})
    claim = found["PersistentVolumeClaim", "tfdist"]
    assert "labels" not in claim["metadata"]  # no job owns it
    assert claim["spec"]["resources"] == {"requests": {"storage": "1Ti"}}
    assert claim["spec"]["storageClassName"] == "nfs"
    found = objects("kubernetes", job(), {"volume.size": "null", "volume.claim": "mine"})
    assert not any(kind == "PersistentVolumeClaim" for kind, _ in found)
    assert "{'claimName': 'mine'}" in str(found["Job", "my-train-2-ps"])


def test_a_pod_that_was_told_to_end_is_made_again_without_a_limit_and_other_statuses_fail():
    found = objects("kubernetes", job(restarts=5, alone=("worker",)))
    signals = [134, 135, 137, 139, 143]
    for role, counted in {"chief": [], "ps": [], "worker": signals}.items():
        spec = found["Job", f"my-train-2-{role}"]["spec"]
        assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (5, 0)
        evicted, told, *again, fails = spec["podFailurePolicy"]["rules"]
        assert [evicted["action"], told["action"], fails["action"]] == ["Ignore", "Ignore", "FailJob"]
        assert told["onExitCodes"] == {"operator": "In", "values": [138]}
        assert [rule["action"] for rule in again] == ["Count"] * bool(counted)
        assert [rule["onExitCodes"]["values"] for rule in again] == [counted] * bool(counted)
        assert fails["onExitCodes"] == {"operator": "NotIn", "values": sorted([138, *counted])}


def test_a_jobset_starts_all_again_but_a_role_alone():
    spec = objects("jobset", job(restarts=5, alone=("worker",)))["JobSet", "my-train-2"]["spec"]
    assert spec["failurePolicy"]["maxRestarts"] == 5
    jobs = {one["name"]: one["template"]["spec"] for one in spec["replicatedJobs"]}
    assert [jobs[role].get("backoffLimitPerIndex") for role in ("chief", "ps", "worker")] == [None, None, 5]
    assert jobs["chief"]["backoffLimit"] == 0


@pytest.mark.parametrize(
    ("counts", "deciding"),
    [
        ({"worker": 3}, ["worker"]),
        ({"chief": 1, "worker": 1}, ["chief"]),
        ({"chief": 1, "evaluator": 1, "ps": 1, "worker": 1}, ["chief", "evaluator"]),
    ],
)
def test_the_tasks_that_lead_or_evaluate_decide_on_success(counts, deciding):
    spec = objects("jobset", job(counts=counts))["JobSet", "my-train-2"]["spec"]
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": deciding}


@pytest.mark.parametrize(
    ("counts", "lead"), [({"worker": 3}, "worker"), ({"chief": 1, "worker": 2, "ps": 1}, "chief")]
)
def test_the_role_that_leads_is_trainers_own(counts, lead):
    found = objects("trainjob", job(counts=counts))
    runtime = found["ClusterTrainingRuntime", "my-train-2"]
    labelled = [
        one["name"]
        for one in runtime["spec"]["template"]["spec"]["replicatedJobs"]
        if "trainer.kubeflow.org/trainjob-ancestor-step"
        in one["template"].get("metadata", {}).get("labels", {})
    ]
    assert labelled == [lead]
    assert found["TrainJob", "my-train-2"]["spec"]["trainer"] == {"numNodes": counts[lead]}
    assert "namespace" not in runtime["metadata"]


def test_an_evaluator_serves_nobody():
    made = pods("tfjob", job(counts={"chief": 1, "evaluator": 1, "worker": 1}))
    for role, pod in made.items():
        assert ("readinessProbe" in pod["spec"]["containers"][0]) == (role != "evaluator")


@pytest.mark.parametrize("engine", ENGINES)
def test_one_process_is_no_cluster(engine):
    made = replace(job(counts={"worker": 1}), is_single=True, threads=3)
    [pod] = pods(engine, made).values()
    [container] = pod["spec"]["containers"]
    names = {one["name"] for one in container["env"]}
    assert not names & {"TFDIST_ROLES", "TFDIST_SERVICE", "JOBSET_NAME", "REPLICATED_JOB_NAME"}
    assert {"name": "OMP_NUM_THREADS", "value": "3"} in container["env"]
    assert "readinessProbe" not in container
    assert container["command"][-1] == "/tfdist/runs/my-train-2"


@pytest.mark.parametrize(("name", "shown"), [("7up", "run-7up"), ("A_b", "a-b"), ("x" * 99, "x" * 33)])
def test_names_are_those_that_services_may_have(name, shown):
    assert ("Secret", shown) in objects("kubernetes", job(name=name))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"image": None}, {}, "engine.kubernetes.image: is missing. Name one that contains tfdist"),
        ({}, {"img": "x"}, "--option img=x: img: unknown key. Did you mean 'image'?"),
        ({}, {"restarts": "many"}, "--option restarts=many: restarts: expected a whole number, received 'many'"),
        ({}, {"resources.boss.gpus": "1"}, "engine.kubernetes.resources: expected a role of the job (chief, ps, worker) or all, received 'boss'"),
        ({"counts": {"chief": 1, "my_job": 1}}, {}, "cluster.my_job: expected lower-case letters, digits and -"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(change, options, message):
    with pytest.raises(ConfigError) as caught:
        find_engine("kubernetes").render(job(**change), options)
    assert str(caught.value).startswith(message)


def test_tfjob_knows_no_other_jobs():
    with pytest.raises(ConfigError, match=r"cluster\.jobs: expected only chief, .* received gatherer"):
        find_engine("tfjob").render(job(counts={"chief": 1, "gatherer": 2}), {})


def test_the_command_line_of_the_user_stays_a_comment():
    text = find_engine("kubernetes").render(job(), {})
    assert text.startswith("# Made by: tfdist render\n# Submit it with: kubectl apply -f FILE\n")


@pytest.fixture
def kubectl(monkeypatch):
    """Return a function that makes kubectl's answers those of a list; the last one is repeated."""
    calls, texts = [], []

    def install(*answers):
        def answer(*words, text=None):
            calls.append(words)
            texts.append(text)
            found = answers[min(len(calls), len(answers)) - 1]
            if isinstance(found, Exception):
                raise found
            return found

        for module in (kubectl_module, engine_base):
            monkeypatch.setattr(module, "run_kubectl", answer)
        return calls

    install.texts = texts
    monkeypatch.setattr(pod_logs, "_SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(follow_logs, "_SECONDS_BETWEEN_STATES", 0.0)
    return install


LOST = ConfigError("kubectl get", "connection refused")


def logs(follow, tasks=("chief:0",), printed=None):
    submission = Submission(Handle("kubernetes", "ns", "x"), "x", Path("/runs/x"), tasks, "tfdist submit")
    printed = [] if printed is None else printed
    printed.extend(find_engine("kubernetes").logs(submission, tasks, follow))
    return printed


@pytest.mark.parametrize("follow", [False, True])
def test_an_error_of_kubectl_ends_the_logs(kubectl, monkeypatch, follow):
    monkeypatch.setattr(follow_logs, "_SECONDS_OF_FAILURES", 0.0)
    calls = kubectl(LOST)
    with pytest.raises(ConfigError, match=r"^logs of chief:0: kubectl get: connection refused$"):
        logs(follow)
    assert len(calls) == 1


def test_an_error_of_one_task_leaves_the_logs_of_the_others(monkeypatch, tmp_path):
    pods = {"chief:0": {"gone": False}, "worker:0": LOST, "worker:1": {"good": False}}

    def pods_of(submission, task):
        if isinstance(pods[task], Exception):
            raise pods[task]
        return [pod_logs._Pod(name, name, has_ended) for name, has_ended in pods[task].items()]

    (tmp_path / "kubectl").write_text(
        '#!/bin/sh\nfor pod; do :; done\necho "I am $pod"; [ $pod = good ] || exit 7\n'
    )
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(pod_logs, "list_pods", lambda *_: [])
    monkeypatch.setattr(pod_logs, "pods_of", pods_of)
    printed = []
    with pytest.raises(ConfigError) as caught:
        logs(follow=False, tasks=tuple(pods), printed=printed)
    assert sorted(printed) == [("chief:0", "I am gone"), ("worker:1", "I am good")]
    assert re.fullmatch(
        r"logs of (worker:0|chief:0 \(gone\)) and 1 more: kubectl (get: connection refused|logs: exited with 7)",
        str(caught.value),
    )


KUBECTL = """#!/bin/sh
echo "$*" >> calls
case "$*" in
    *since*) printf '2026-01-01T00:00:01.5Z b\\n2026-01-01T00:00:01.51Z c\\n2026-01-01T00:00:01.51Z \\n' ;;
    *) printf '2026-01-01T00:00:01Z a\\n2026-01-01T00:00:01.5Z b\\n'; exit 1 ;;
esac
"""


def test_a_connection_of_followed_logs_that_is_lost_continues_after_the_last_line(monkeypatch, tmp_path):
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(pod_logs, "_SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(follow_logs, "_SECONDS_BETWEEN_STATES", 0.0)
    monkeypatch.setattr(pod_logs, "list_pods", lambda *_: [])
    has_ended, states = iter([False, True, True]), iter([State.RUNNING, State.RUNNING, State.SUCCEEDED])
    monkeypatch.setattr(pod_logs, "pods_of", lambda *_: [pod_logs._Pod("pod", "1", next(has_ended))])
    monkeypatch.setattr(engine_base.KubectlEngine, "state", lambda *_: (next(states), ""))
    assert logs(follow=True) == [("chief:0", text) for text in ("a", "b", "c", "")]
    assert [line.split("--timestamps ")[1] for line in (tmp_path / "calls").read_text().splitlines()] == [
        "pod",
        "--since-time=2026-01-01T00:00:01.5Z pod",
    ]


def test_a_pod_that_is_made_again_under_its_name_is_followed(monkeypatch, tmp_path):
    (tmp_path / "kubectl").write_text('#!/bin/sh\necho "$*" >> calls; wc -l < calls\n')
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(pod_logs, "_SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(follow_logs, "_SECONDS_BETWEEN_STATES", 0.0)
    monkeypatch.setattr(pod_logs, "list_pods", lambda *_: [])
    pods, states = iter("112"), iter([State.RUNNING, State.RUNNING, State.SUCCEEDED])
    monkeypatch.setattr(pod_logs, "pods_of", lambda *_: [pod_logs._Pod("x-0", next(pods), True)])
    monkeypatch.setattr(engine_base.KubectlEngine, "state", lambda *_: (next(states), ""))
    assert logs(follow=True) == [("chief:0", "1"), ("chief:0", "2")]


def test_the_threads_of_the_tasks_share_what_kubectl_says(kubectl, monkeypatch):
    monkeypatch.setattr(pod_logs, "_SECONDS_BETWEEN_LOOKS", 3600.0)
    tasks = tuple(f"worker:{index}" for index in range(20))
    deleted, no_pods = "", '{"items": []}'
    calls = kubectl(deleted, no_pods)
    assert logs(follow=True, tasks=tasks) == []
    assert len(calls) == 3  # the object, whether it has pods, and the last pods
    calls.clear()
    kubectl(no_pods)
    assert logs(follow=False, tasks=("chief:0", *tasks)) == []
    assert [words[-2:] for words in calls] == [("--selector=app.kubernetes.io/instance=x", "--output=json")]


def test_pods_of_other_tasks_are_left_out():
    def pod(role, index, phase="Running"):
        labels = {pod_logs.ROLE: role, pod_logs._INDEXES[0]: index}
        return {"metadata": {"name": f"{role}-{index}", "labels": labels}, "status": {"phase": phase}}

    found = [pod("chief", "0"), pod("worker", "0"), pod("worker", "1"), pod("ps", "1", "Pending")]
    assert [pod.name for pod in pod_logs.pods_of(found, "worker:1")] == ["worker-1"]
    assert pod_logs.pods_of(found, "ps:1") == []


WAITS = {"reason": "ImagePullBackOff", "message": "Back-off pulling\nimage"}
CREATES = {"state": {"waiting": {"reason": "ContainerCreating"}}}
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}


@pytest.mark.parametrize(
    ("statuses", "events", "words"),
    [
        ([{}, {"containerStatuses": [CREATES, {"state": {"waiting": WAITS}}]}], [],
         "x-chief: no pod is ready: pod p1: ImagePullBackOff: Back-off pulling image"),
        ([{"conditions": [UNSCHEDULED]}], [], "x-chief: no pod is ready: pod p0: Unschedulable: no GPU"),
        ([{"containerStatuses": [CREATES]}], [], "x-chief: no pod is ready"),
        ([], [("x-chief", "1", "old"), ("y", "3", "other"), ("x-chief", "2", "exceeded quota")],
         "x-chief: no pod is ready: FailedCreate: exceeded quota"),
    ],
)  # fmt: skip
def test_a_job_that_waits_says_why(kubectl, statuses, events, words):
    found = {"items": [{"metadata": {"name": "x-chief"}, "status": {}}]}
    listed = {"items": [{"metadata": {"name": f"p{i}"}, "status": one} for i, one in enumerate(statuses)]}
    of_jobs = {"items": [{"involvedObject": {"name": name}, "lastTimestamp": at, "reason": "FailedCreate", "message": text}
                         for name, at, text in events]}  # fmt: skip
    kubectl(*map(json.dumps, (found, listed, of_jobs)))
    submission = Submission(
        Handle("kubernetes", "ns", "x"), "x", Path("/runs/x"), ("chief:0",), "tfdist submit"
    )
    assert find_engine("kubernetes").state(submission) == (State.PENDING, words)


FAILED = {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}


@pytest.mark.parametrize(
    ("of_chief", "state"),
    [
        ({"ready": 1}, (State.RUNNING, "x-chief: 1 ready; x-worker: Failed: BackoffLimitExceeded")),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, (State.SUCCEEDED, "x-chief: Complete")),
        (FAILED, (State.FAILED, "x-chief: Failed: BackoffLimitExceeded")),
    ],
    ids=["running", "succeeded", "failed"],
)
def test_the_chief_may_succeed_without_a_lost_worker(kubectl, of_chief, state):
    states = {"x-chief": of_chief, "x-worker": FAILED}
    found = [{"metadata": {"name": name}, "status": status} for name, status in states.items()]
    kubectl(json.dumps({"items": found}))
    submission = Submission(
        Handle("kubernetes", "ns", "x"), "x", Path("/runs/x"), ("chief:0", "worker:0"), "tfdist submit"
    )
    assert find_engine("kubernetes").state(submission) == state


def test_a_reason_that_may_not_be_asked_for_is_left_out(kubectl):
    found = {"items": [{"metadata": {"name": "x-chief"}, "status": {}}]}
    kubectl(json.dumps(found), ConfigError("kubectl get", "forbidden"))
    submission = Submission(
        Handle("kubernetes", "ns", "x"), "x", Path("/runs/x"), ("chief:0",), "tfdist submit"
    )
    assert find_engine("kubernetes").state(submission) == (State.PENDING, "x-chief: no pod is ready")


def test_followed_logs_outlast_errors_of_kubectl(kubectl):
    deleted, no_pods = "", '{"items": []}'
    calls = kubectl(LOST, LOST, LOST, LOST, deleted, no_pods, LOST, LOST, LOST, LOST, no_pods)
    assert logs(follow=True) == []
    assert len(calls) == 11


ENDING = (State.RUNNING, "it was deleted, and its pods end")


@pytest.mark.parametrize(
    ("pods", "state"),
    [
        ({"Succeeded": "2020-01-01T00:00:00Z", "Running": "2999-01-01T00:00:00Z"}, ENDING),
        ({"Running": None}, ENDING),
        ({"Running": "2020-01-01T00:00:00Z"}, (State.CANCELLED, "it was deleted")),  # its node is gone
        ({"Succeeded": None}, (State.CANCELLED, "it was deleted")),
        (None, (State.CANCELLED, "it was deleted")),
    ],
)
def test_a_deleted_job_ends_with_its_pods(kubectl, pods, state):
    items = [
        {"metadata": {"deletionTimestamp": deadline} if deadline else {}, "status": {"phase": phase}}
        for phase, deadline in (pods or {}).items()
    ]
    kubectl("", LOST if pods is None else json.dumps({"items": items}))
    submission = Submission(
        Handle("kubernetes", "ns", "x"), "x", Path("/runs/x"), ("chief:0",), "tfdist submit"
    )
    assert find_engine("kubernetes").state(submission) == state


@pytest.mark.parametrize(
    ("existing", "note"),
    [
        (None, ""),
        ("1Ti", ""),
        ("5Gi", "tfdist: persistentvolumeclaim tfdist: exists with 5Gi and stays as it is; volume.size (1Ti) has no effect\n"),
    ],
)  # fmt: skip
def test_a_claim_that_exists_stays_as_it_is(kubectl, capsys, existing, note):
    claim = {"kind": "PersistentVolumeClaim", "spec": {"resources": {"requests": {"storage": existing}}}}
    calls = kubectl("here", "" if existing is None else json.dumps(claim), "")
    find_engine("kubernetes").submit(job(), {"volume.size": "1Ti", "namespace": "ml"})
    get, apply = calls[1:]
    assert (get[0], get[1], get[-1]) == ("get", "--namespace=ml", "persistentvolumeclaim/tfdist")
    kinds = [one["kind"] for one in yaml.safe_load_all(kubectl.texts[-1])]
    assert apply[0] == "apply"
    assert ("PersistentVolumeClaim" in kinds) is (existing is None)
    assert {"Secret", "Job", "Service"} < set(kinds)
    assert capsys.readouterr().err == note


def test_a_job_continues_a_run_where_its_volume_is(kubectl):
    earlier = Handle("kubernetes", "ml@site%2Fa", "x-1")
    later = replace(job(namespace="ml"), run="x-1", earlier=earlier)
    calls = kubectl("")
    assert find_engine("kubernetes").submit(later, {}).handle.place == earlier.place
    assert calls[-1] == ("apply", "--namespace=ml", "--context=site/a", "--filename=-")
    message = (
        r"^engine\.kubernetes\.namespace: expected 'ml', that of kubernetes://ml@site%2Fa/x-1, received 'b'\."
    )
    with pytest.raises(ConfigError, match=message):
        find_engine("kubernetes").submit(later, {"namespace": "b"})
    calls.clear()
    kubectl("now\n", "")
    in_a_bucket = find_engine("kubernetes").submit(replace(later, address="gs://b/runs"), {})
    assert in_a_bucket.handle.place == "ml@now"


@pytest.mark.parametrize("page", ["kubernetes.md", "from_tfjob.md"])
def test_the_configs_of_the_pages_are_right(page, tmp_path):
    text = (Path(__file__).parents[4] / "docs" / "engines" / page).read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        (tmp_path / "x.yaml").write_text(block)
        section = read_config(tmp_path / "x.yaml").config.engine.kubernetes
        assert section.image
        for engine in ENGINES:
            made = replace(job(config=tmp_path / "x.yaml"), section=EngineSection(kubernetes=section))
            assert "image: registry.example/me/train:1" in find_engine(engine).render(made, {})
