import copy
import dataclasses
import json
import pickle

import pytest

from tfdist.cluster.addresses_and_free_ports import join_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.errors import ConfigError

FULL = ClusterConfig(chief=["a:1"], worker=["b:1", "c:1"], ps=["d:1"], evaluator=["e:1"])


def refused(message, **roles):
    with pytest.raises(ConfigError) as caught:
        ClusterConfig(**roles)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_it_is_a_value():
    same = ClusterConfig(chief=("a:1",), worker=("b:1", "c:1"), ps=("d:1",), evaluator=("e:1",))
    assert same == FULL
    assert hash(FULL) == hash(same)
    assert FULL.with_task("worker", 0) != FULL
    assert {FULL: 1}[same] == 1
    assert pickle.loads(pickle.dumps(FULL)) == copy.deepcopy(FULL) == FULL
    with pytest.raises(dataclasses.FrozenInstanceError):
        FULL.worker = ()


def test_roles_tasks_and_addresses():
    names = ["chief:0", "worker:0", "worker:1", "ps:0", "evaluator:0"]
    assert [str(task) for task in FULL.tasks()] == names
    assert Task("worker", 1).cpu == f"{Task('worker', 1).device}/device:CPU:0"
    assert Task("worker", 1).device == "/job:worker/replica:0/task:1"
    assert FULL.counts == {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}
    assert [FULL.size(role) for role in ("chief", "worker", "ps", "evaluator")] == [1, 2, 1, 1]
    assert FULL.address(Task("worker", 1)) == FULL.address(("worker", 1)) == "c:1"
    assert FULL
    assert not ClusterConfig()
    assert ClusterConfig().counts == {}
    with pytest.raises(ConfigError, match=r"unknown role 'workers'. Did you mean 'worker'\?"):
        FULL.size("workers")
    with pytest.raises(ConfigError, match=r"expected an index in 0…1"):
        FULL.address(("worker", 2))


@pytest.mark.parametrize(
    ("text", "task"), [("worker:1", ("worker", 1)), ("chief", ("chief", 0)), ("ps:0", ("ps", 0))]
)
def test_a_task_is_read_from_text(text, task):
    assert Task.parse(text) == task


@pytest.mark.parametrize(
    "text", ["", "worker", "worker:", "worker:x", "worker:-1", "1", "wroker:1", "worker:1:2"]
)
def test_a_task_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match=r"^task"):
        Task.parse(text)


def test_tf_config_is_the_exact_dict():
    assert FULL.tf_config("worker", 1) == {
        "cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]},
        "task": {"type": "worker", "index": 1},
    }
    assert json.loads(FULL.with_task("ps").tf_config_json())["task"] == {"type": "ps", "index": 0}
    assert "task" not in FULL.tf_config()
    assert ClusterConfig().tf_config() == {}


def test_only_the_evaluator_is_told_of_itself():
    # A TensorFlow server waits for all tasks that its TF_CONFIG names, and the evaluator runs none.
    assert "evaluator" not in FULL.tf_config("chief")["cluster"]
    assert FULL.tf_config("evaluator")["cluster"]["evaluator"] == ["e:1"]
    assert FULL.training().size("evaluator") == 0


def test_an_evaluator_may_have_no_address():
    cluster = ClusterConfig(worker=["a:1"], task=("evaluator", 0))
    assert cluster.task == ("evaluator", 0)
    with pytest.raises(ConfigError, match="has no address"):
        cluster.address(cluster.task)


def test_jobs_of_any_name_stand_beside_the_roles():
    cluster = ClusterConfig(
        chief=["a:1"], jobs={"reader": ["b:1"], "gpu_2": ["c:1", "d:1"]}, task=("gpu_2", 1)
    )
    assert [str(task) for task in cluster.tasks()] == ["chief:0", "gpu_2:0", "gpu_2:1", "reader:0"]
    assert cluster.size("reader") == 1
    assert cluster.address(("gpu_2", 1)) == "d:1"
    assert cluster.serves
    assert not cluster.is_chief
    text = cluster.tf_config_json()
    assert json.loads(text) == {
        "cluster": {"chief": ["a:1"], "reader": ["b:1"], "gpu_2": ["c:1", "d:1"]},
        "task": {"type": "gpu_2", "index": 1},
    }
    read = ClusterConfig.from_tf_config(text)
    assert read == cluster == pickle.loads(pickle.dumps(cluster)) == dataclasses.replace(cluster)
    assert hash(read) == hash(cluster)
    assert read != cluster.with_task("chief") == read.with_task(Task.parse("chief"))
    assert cluster.of([Task("chief", 0), Task("gpu_2", 1)]).task == Task("gpu_2", 0)


def test_a_job_that_cannot_be_is_refused():
    for jobs, message in (
        ({"workers": ["b:1"]}, "unknown role 'workers'. Did you mean 'worker'?"),
        ({"worker": ["b:1"]}, "worker: is a role; another job needs another name"),
        ({"Gpu": ["b:1"]}, "expected a job's name"),
        ({"gpu/2": ["b:1"]}, "expected a job's name"),
        ({"gpu": "b:1"}, "expected a list of host:port"),
        ({"gpu": ["a:1"]}, "gpu[0]: 'a:1' is also the address of chief:0"),
        ({1: ["b:1"]}, "expected a job's name, received 1"),
        (["gpu"], "expected addresses by the name of the job"),
    ):
        refused(message, chief=["a:1"], jobs=jobs)
    refused("gpu without a chief", worker=["a:1"], jobs={"gpu": ["b:1"]})
    cluster = ClusterConfig(chief=["a:1"], jobs={"gpu": ["b:1"]})
    with pytest.raises(ConfigError, match=r"unknown role 'gpus'. Did you mean 'gpu'\?"):
        cluster.with_task("gpus")


def test_what_makes_no_cluster_is_refused():
    refused("worker[1]: 'b:1' is also the address of worker:0. Assign another port", worker=["b:1", "b:1"])
    refused("ps[0]: 'B:01' is also the address of worker:0", worker=["b:1"], ps=["B:01"])
    refused("'[0:0::1]:1' is also the address of worker:0", worker=["[::1]:1", "[0:0::1]:1"])
    refused(
        "evaluator is outside the training cluster: give it an address", worker=["b:1"], evaluator=["b:1"]
    )
    refused("no worker: the evaluator is outside the training cluster", evaluator=["b:1"])
    refused("1 ps without a worker", ps=["b:1"])
    refused("1 ps without a worker", chief=["a:1"], ps=["b:1"])
    refused("chief: expected one chief, received 2", chief=["a:1", "b:1"])
    refused("evaluator: expected one evaluator, received 2", worker=["c:1"], evaluator=["a:1", "b:1"])
    refused("worker[0]: expected host:port, received 'b', which has no port", worker=["b"])
    refused(
        "worker[1]: expected host:port, received 'b:0', whose port 0 is not in 1…65535", worker=["a:1", "b:0"]
    )
    refused("worker: expected a list of host:port, received 'b:1'", worker="b:1")
    refused("worker: expected a list of host:port, received 3", worker=3)
    refused(
        "task: expected an index in 0…0 (ClusterConfig: worker lists 1), received 1",
        worker=["a:1"],
        task=("worker", 1),
    )
    refused("task: expected an index in 0…0", worker=["a:1"], task=("worker", -1))
    refused("task: unknown role 'wroker'. Did you mean 'worker'?", worker=["a:1"], task=("wroker", 0))
    refused("task: expected a role of the cluster (worker), received 'ps'", worker=["a:1"], task=("ps", 0))
    refused("task: expected a role of the cluster (none), received 'worker'", task=("worker", 0))
    refused("task: expected a role and an index", worker=["a:1"], task="worker:0")
    refused("task: expected a role and an index", worker=["a:1"], task=("worker", True))


def test_the_chief_is_worker_0_where_there_is_none():
    workers = ClusterConfig(worker=["a:1", "b:1"])
    assert [workers.with_task(task).is_chief for task in workers.tasks()] == [True, False]
    assert [FULL.with_task(task).is_chief for task in FULL.tasks()] == [True, False, False, False, True]
    assert ClusterConfig().is_chief
    assert not FULL.is_chief


def test_the_cluster_of_some_tasks_numbers_them_anew():
    whole = ClusterConfig(chief=("a:1",), worker=("b:1", "c:1", "d:1"), task=("worker", 2))
    some = whole.of([Task("worker", 2), Task("chief", 0), Task("worker", 0)])

    assert some == ClusterConfig(chief=("a:1",), worker=("b:1", "d:1"), task=("worker", 1))
    assert whole.of(whole.tasks()) == whole


def test_a_cluster_of_addresses_has_other_jobs_too():
    addresses = {Task("reader", 0): join_address("fe80::2", 1), Task("chief", 0): join_address("a", 1)}
    assert ClusterConfig.of_addresses(addresses) == ClusterConfig(
        chief=["a:1"], jobs={"reader": ["[fe80::2]:1"]}
    )


def test_who_serves():
    assert [str(task) for task in FULL.tasks() if FULL.with_task(task).serves] == [
        "worker:0",
        "worker:1",
        "ps:0",
    ]
    workers = ClusterConfig(worker=["a:1", "b:1"])
    assert not any(workers.with_task(task).serves for task in workers.tasks())
    assert not ClusterConfig().serves


def test_a_local_cluster_has_a_port_for_each_and_a_chief_where_there_is_a_ps():
    cluster = ClusterConfig.local(workers=2, ps=1, evaluator=1)
    assert [str(task) for task in cluster.tasks()] == [
        "chief:0",
        "worker:0",
        "worker:1",
        "ps:0",
        "evaluator:0",
    ]
    assert len({cluster.address(task) for task in cluster.tasks()}) == 5
    assert cluster.is_on_ports_of_ours
    assert cluster.with_task("worker").is_on_ports_of_ours
    assert not ClusterConfig.local(workers=2).chief
    assert not ClusterConfig.local(workers=2, ps=1, chief=0).chief


@pytest.mark.parametrize(
    "sizes",
    [{"workers": 0}, {"workers": -1}, {"workers": 1, "chief": 2}, {"workers": 10**6}, {"workers": 1.5}],
)
def test_a_local_cluster_of_impossible_size_is_refused(sizes):
    with pytest.raises(ConfigError, match=r"ClusterConfig\.local"):
        ClusterConfig.local(**sizes)


# -- TF_CONFIG --


def test_tf_config_of_2017_with_a_master_is_read():
    text = '{"cluster": {"master": ["m:1"], "worker": ["w:1"], "ps": ["p:1"]}, "task": {"type": "master", "index": 0}, "environment": "cloud"}'
    assert ClusterConfig.from_tf_config(text) == ClusterConfig(
        chief=["m:1"], worker=["w:1"], ps=["p:1"], task=("chief", 0)
    )


def test_no_tf_config_is_a_single_process(monkeypatch):
    for text in ("", "  ", "{}", None, b"{}", '{"cluster": {}}', '{"cluster": null, "task": null}'):
        assert ClusterConfig.from_tf_config(text) == ClusterConfig()
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1"]}}')
    assert ClusterConfig.from_tf_config().worker == ("a:1",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{'cluster': 1}", "TF_CONFIG: column 2: malformed JSON"),
        (b'{"a": "\xff"}', "TF_CONFIG: is not UTF-8: byte 8 is 0xff"),
        ("[1]", "TF_CONFIG: expected a JSON object"),
        ('{"cluster": []}', "TF_CONFIG: cluster: expected a JSON object, received a list of 0"),
        ('{"cluster": {"wroker": ["a:1"]}}', "TF_CONFIG: cluster.wroker: unknown role 'wroker'. Did you mean 'worker'?"),
        ('{"cluster": {"worker": "a:1"}}', "TF_CONFIG: cluster.worker: expected a list of host:port"),
        ('{"cluster": {"worker": [1]}}', "TF_CONFIG: cluster.worker[0]: expected host:port, received 1"),
        ('{"cluster": {"worker": ["a:1"]}, "task": 1}', "TF_CONFIG: task: expected a JSON object, received 1"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": 1}}', "TF_CONFIG: task.type: expected a text"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "x"}}', "TF_CONFIG: task.index: expected a whole"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}', "TF_CONFIG: task: expected an index in 0…0 (TF_CONFIG: cluster.worker lists 1), received 1"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "google", "index": 0}}', "TF_CONFIG: task: unknown role 'google'"),
        ('{"cluster": {"chief": ["a:1"], "master": ["b:1"]}}', "TF_CONFIG: cluster: has both master and chief"),
        ({"cluster": {}}, "TF_CONFIG: expected JSON text, received a dict of 1. Convert it by json.dumps"),
    ],
)  # fmt: skip
def test_a_wrong_tf_config_is_one_line_with_its_place(text, message):
    with pytest.raises(ConfigError) as caught:
        ClusterConfig.from_tf_config(text)
    assert str(caught.value).startswith(message)


def test_an_index_written_as_text_is_taken_as_tensorflow_takes_it():
    text = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": "1"}}'
    assert ClusterConfig.from_tf_config(text).task == ("worker", 1)


# -- YAML --


@pytest.fixture
def yaml_file(tmp_path):
    def write(text):
        path = tmp_path / "x.yaml"
        path.write_text(text)
        return path

    return write


HOSTS = "cluster:\n  chief: [a:1]\n  worker:\n    - b:1\n    - c:1\n  ps: [d:1]\n"


def test_yaml_lists_addresses(yaml_file):
    cluster = ClusterConfig.from_yaml(yaml_file(HOSTS))
    assert cluster == ClusterConfig(chief=["a:1"], worker=["b:1", "c:1"], ps=["d:1"])
    assert ClusterConfig.from_yaml(yaml_file(HOSTS), task="worker:1").task == ("worker", 1)


def test_yaml_counts_tasks_on_this_machine(yaml_file):
    cluster = ClusterConfig.from_yaml(yaml_file("cluster: {worker: 2, ps: 1}"))
    assert [cluster.size(role) for role in ("chief", "worker", "ps")] == [1, 2, 1]
    assert cluster.is_on_ports_of_ours


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clustre: {worker: 2}", "x.yaml:1: cluster: is missing. Is it 'clustre'?"),
        ("cluster:\n  workers: 2", "x.yaml:2: cluster.workers: unknown key. Did you mean 'worker'?"),
        (
            "cluster:\n  worker: two",
            "x.yaml:2: cluster.worker: expected a whole number or a list, received 'two'",
        ),
        (
            "cluster:\n  worker:\n    - b:1\n    - b:1",
            "x.yaml:4: cluster.worker[1]: 'b:1' is also the address of worker:0",
        ),
        (
            "cluster:\n  worker:\n    - b:1\n    - b",
            "x.yaml:4: cluster.worker[1]: expected host:port, received 'b'",
        ),
        ("cluster:\n  worker: 0", "x.yaml:2: cluster.worker: the cluster has no worker"),
        ("cluster:\n  ps: 1", "x.yaml:1: cluster.worker: the cluster has no worker"),
        (
            "cluster:\n  worker: -1",
            "x.yaml:2: cluster.worker: expected a whole number >= 0, received -1",
        ),
        ("cluster:\n  chief: 1\n  worker: [b:1]", "x.yaml:2: cluster.chief: is a number, but"),
        (
            "cluster:\n  worker: 1\n  port: 0",
            "x.yaml:3: cluster.port: expected a whole number >= 1, received 0",
        ),
    ],
)
def test_a_wrong_yaml_is_one_line_with_file_and_line(yaml_file, text, message):
    with pytest.raises(ConfigError) as caught:
        ClusterConfig.from_yaml(yaml_file(text))
    assert message in str(caught.value)


def tf_config(**cluster):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})}


def test_the_environment_says_which_task_of_the_file_this_is(yaml_file):
    environ = tf_config(chief=["a:1"], worker=["b:1", "c:1"], ps=["d:1"])
    assert ClusterConfig.from_yaml(yaml_file(HOSTS), environ=environ).task == ("worker", 1)
    counted = ClusterConfig.from_yaml(yaml_file("cluster: {worker: 2, ps: 1}"), environ=environ)
    assert counted.worker == ("b:1", "c:1")
    assert not counted.is_on_ports_of_ours


def test_file_and_environment_that_contradict_each_other_are_both_named(yaml_file):
    path = yaml_file("cluster: {worker: 2}")
    with pytest.raises(ConfigError) as caught:
        ClusterConfig.from_yaml(path, environ=tf_config(worker=["a:1", "b:1", "c:1"]))
    assert str(caught.value) == (
        f"{path}:1: cluster: says 2 worker, but TF_CONFIG: cluster says 3 worker."
        " Correct the one that is wrong, or unset it"
    )
    with pytest.raises(ConfigError, match="says worker:0, but TF_CONFIG: task says worker:1"):
        ClusterConfig.from_yaml(path, task="worker:0", environ=tf_config(worker=["a:1", "b:1"]))
    with pytest.raises(
        ConfigError, match=r"worker\[1\]: says c:1, but TF_CONFIG: cluster.worker\[1\] says x:1"
    ):
        ClusterConfig.from_yaml(
            yaml_file(HOSTS), environ=tf_config(chief=["a:1"], worker=["b:1", "x:1"], ps=["d:1"])
        )


def test_a_section_may_be_left_out(yaml_file):
    with pytest.raises(ConfigError, match="cluster: is missing"):
        ClusterConfig.from_yaml(yaml_file("other: 1"))


def test_a_role_has_its_tasks_in_one_place(yaml_file):
    path = yaml_file("cluster:\n  worker: 3\n  jobs: {worker: 2}\n")
    expected = r":3: cluster\.jobs\.worker: worker is also at .*:2: cluster\.worker\. Write it once"
    with pytest.raises(ConfigError, match=expected):
        ClusterConfig.from_yaml(path)


def test_yaml_lists_or_counts_other_jobs(yaml_file):
    path = yaml_file("cluster:\n  chief: [a:1]\n  jobs: {reader: [b:1]}\n")
    assert ClusterConfig.from_yaml(path, task="reader:0") == ClusterConfig(
        chief=["a:1"], jobs={"reader": ["b:1"]}, task=("reader", 0)
    )
    counted = ClusterConfig.from_yaml(yaml_file("cluster: {jobs: {reader: 2}}\n"))
    assert [str(task) for task in counted.tasks()] == ["chief:0", "reader:0", "reader:1"]
    local = ClusterConfig.local(workers=0, jobs={"reader": 2})
    assert local.tasks() == counted.tasks()


@pytest.mark.parametrize(
    ("roles", "computing"),
    [
        ({"chief": 1, "worker": 1, "evaluator": 1}, ["chief:0", "worker:0"]),
        ({"chief": 1, "worker": 2, "ps": 1}, ["worker:0", "worker:1"]),
        ({"chief": 1, "jobs": {"reader": ["reader0:2222"]}}, ["reader:0"]),
        ({}, []),
    ],
)
def test_the_chief_of_ps_tasks_or_other_jobs_computes_no_steps(roles, computing):
    made = ClusterConfig(
        **{
            role: tuple(f"{role}{n}:2222" for n in range(count)) if isinstance(count, int) else count
            for role, count in roles.items()
        }
    )
    assert [str(task) for task in made.computing_tasks()] == computing
