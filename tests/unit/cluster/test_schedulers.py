import itertools
import json
import logging

import pytest

from tfdist.cluster.config import ClusterConfig
from tfdist.errors import ConfigError


def found(sizes=None, port=None, **environ):
    return ClusterConfig.from_environment(sizes, port=port, environ=environ)


def refused(message, sizes=None, **environ):
    with pytest.raises(ConfigError) as caught:
        found(sizes, **environ)
    assert message in str(caught.value)


def test_nothing_set_is_a_single_process():
    assert found() == ClusterConfig()
    assert found(HOME="/root", SLURM_JOB_ID="1", TF_CONFIG="") == ClusterConfig()


def test_the_log_says_which_was_taken(caplog):
    with caplog.at_level(logging.INFO, "tfdist"):
        found(TF_CONFIG='{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}')
    assert caplog.messages == ["read the cluster from TF_CONFIG: 1 worker; this is worker:0"]


# -- Vertex AI --

VERTEX = {
    "cluster": {"workerpool0": ["c:2222"], "workerpool1": ["w0:2222", "w1:2222"], "workerpool2": ["p:2222"], "workerpool3": ["e:2222"]},
    "environment": "cloud",
    "task": {"type": "workerpool1", "index": 1, "trial": "7"},
    "job": "{}",
}  # fmt: skip


def test_vertex_ai_numbers_its_pools():
    assert found(CLUSTER_SPEC=json.dumps(VERTEX)) == ClusterConfig(
        chief=["c:2222"],
        worker=["w0:2222", "w1:2222"],
        ps=["p:2222"],
        evaluator=["e:2222"],
        task=("worker", 1),
    )


def test_vertex_ai_sets_tf_config_too_and_both_must_agree():
    config = {"cluster": {"chief": ["c:2222"], "worker": ["w0:2222", "w1:2222"], "ps": ["p:2222"]}}
    environ = {"CLUSTER_SPEC": json.dumps(VERTEX), "TF_CONFIG": json.dumps(config)}
    assert found(**environ).size("worker") == 2
    config["cluster"]["worker"].append("w2:2222")
    environ["TF_CONFIG"] = json.dumps(config)
    refused(
        "TF_CONFIG: cluster: says 1 chief + 3 worker + 1 ps, "
        "but CLUSTER_SPEC: cluster says 1 chief + 2 worker + 1 ps + 1 evaluator",
        **environ,
    )


def test_vertex_ai_malformed():
    refused(
        "CLUSTER_SPEC: cluster.workerpool9: unknown pool",
        CLUSTER_SPEC='{"cluster": {"workerpool9": ["a:1"]}}',
    )
    refused("CLUSTER_SPEC: column 1: malformed JSON", CLUSTER_SPEC="x")
    refused("CLUSTER_SPEC: task: unknown role 'boss'", CLUSTER_SPEC='{"cluster": {"workerpool0": ["a:1"]}, "task": {"type": "boss"}}')  # fmt: skip


# -- SageMaker --

SAGEMAKER = {"SM_HOSTS": '["algo-2", "algo-1"]', "SM_CURRENT_HOST": "algo-2"}
RESOURCES = json.dumps(
    {"current_host": "algo-2", "hosts": ["algo-1", "algo-2"], "network_interface_name": "eth0"}
)


def test_sagemaker_sorts_its_hosts():
    cluster = ClusterConfig(worker=["algo-1:2222", "algo-2:2222"], task=("worker", 1))
    assert found(**SAGEMAKER) == cluster
    assert found(SM_RESOURCE_CONFIG=RESOURCES) == cluster
    assert found(**SAGEMAKER, SM_RESOURCE_CONFIG=RESOURCES) == cluster
    assert found({"chief": 1, "worker": 1}, port=80, **SAGEMAKER) == ClusterConfig(
        chief=["algo-1:80"], worker=["algo-2:80"], task=("worker", 0)
    )


def test_sagemaker_malformed_or_contradicting():
    refused("SM_CURRENT_HOST: is not set, though SM_HOSTS is", SM_HOSTS='["a"]')
    refused("SM_CURRENT_HOST: expected one of the 2 hosts", **{**SAGEMAKER, "SM_CURRENT_HOST": "x"})
    refused("SM_HOSTS: expected a JSON list of host names", SM_HOSTS="{}", SM_CURRENT_HOST="a")
    refused("SM_HOSTS: column", SM_HOSTS="[", SM_CURRENT_HOST="a")
    refused(
        "SM_HOSTS: says ['algo-1', 'algo-2', 'algo-3'] on algo-2, "
        "but SM_RESOURCE_CONFIG says ['algo-1', 'algo-2'] on algo-2",
        SM_HOSTS='["algo-1", "algo-2", "algo-3"]', SM_CURRENT_HOST="algo-2", SM_RESOURCE_CONFIG=RESOURCES,
    )  # fmt: skip
    refused("SM_HOSTS: says 2 tasks, but sizes says 3 worker", {"worker": 3}, **SAGEMAKER)


def sagemaker_groups(**hosts_of):
    groups = [{"instance_group_name": name, "hosts": hosts} for name, hosts in hosts_of.items()]
    hosts = [host for hosts in hosts_of.values() for host in hosts]
    config = {"current_host": hosts[-1], "hosts": hosts, "instance_groups": groups}
    return {"SM_RESOURCE_CONFIG": json.dumps(config)}


def test_sagemaker_groups_that_are_called_like_roles_are_these_roles():
    groups = {"chief": ["algo-2"], "ps": ["algo-4"], "worker": ["algo-3", "algo-1"]}
    assert found(**sagemaker_groups(**groups)) == ClusterConfig(
        chief=["algo-2:2222"], ps=["algo-4:2222"], worker=["algo-1:2222", "algo-3:2222"], task=("worker", 0)
    )
    assert found(**sagemaker_groups(homogeneousCluster=["algo-1", "algo-2"])) == ClusterConfig(
        worker=["algo-1:2222", "algo-2:2222"], task=("worker", 1)
    )
    where = "SM_RESOURCE_CONFIG: instance_groups: "
    refused(
        where
        + "expected a role (chief, worker, ps, evaluator) as the name of each group, or of none, received 'gpus'",
        **sagemaker_groups(chief=["algo-1"], gpus=["algo-2"]),
    )
    config = json.loads(sagemaker_groups(**groups)["SM_RESOURCE_CONFIG"])
    del config["instance_groups"][0]
    refused(where + "must have each of the 4 hosts of SM_HOSTS once", SM_RESOURCE_CONFIG=json.dumps(config))


# -- SkyPilot --

SKYPILOT = {"SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.3", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2"}


def test_skypilot_nodes_have_a_task_each():
    assert found(**SKYPILOT) == ClusterConfig(worker=["10.0.0.7:2222", "10.0.0.3:2222"], task=("worker", 1))
    assert found({"chief": 1, "worker": 1}, **SKYPILOT).chief == ("10.0.0.7:2222",)
    assert found(SKYPILOT_NODE_IPS="10.0.0.7", SKYPILOT_NODE_RANK="0") == ClusterConfig()


def test_skypilot_malformed_or_contradicting():
    refused("SKYPILOT_NODE_RANK: is not set, though SKYPILOT_NODE_IPS is", SKYPILOT_NODE_IPS="a\nb")
    refused(
        "SKYPILOT_NUM_NODES: says 3, but SKYPILOT_NODE_IPS has 2", **{**SKYPILOT, "SKYPILOT_NUM_NODES": "3"}
    )
    refused("SKYPILOT_NODE_RANK: expected a rank below 2", **{**SKYPILOT, "SKYPILOT_NODE_RANK": "2"})


# -- Slurm --


def slurm(nodes="n[1-2]", per_node="2(x2)", rank=3, tasks=None, **more):
    environ = {"SLURM_STEP_NODELIST": nodes, "SLURM_STEP_TASKS_PER_NODE": per_node, "SLURM_PROCID": str(rank)}
    return {**environ, **({"SLURM_STEP_NUM_TASKS": str(tasks)} if tasks is not None else {}), **more}


def test_slurm_ranks_are_dealt_to_roles():
    assert found(port=9000, **slurm(tasks=4)) == ClusterConfig(
        worker=["n1:9000", "n1:9001", "n2:9000", "n2:9001"], task=("worker", 3)
    )
    assert found({"chief": 1, "worker": 2, "ps": 1}, port=9000, **slurm(rank=1)) == ClusterConfig(
        chief=["n1:9000"], ps=["n1:9001"], worker=["n2:9000", "n2:9001"], task=("ps", 0)
    )


def test_a_variable_states_the_roles_of_scripts():
    environ = slurm(rank=1, TFDIST_ROLES="chief=1,ps=1,worker=2")
    assert found(port=9000, **environ) == ClusterConfig(
        chief=["n1:9000"], ps=["n1:9001"], worker=["n2:9000", "n2:9001"], task=("ps", 0)
    )
    refused(
        "SLURM_STEP_NODELIST: says 4 tasks, but TFDIST_ROLES says 3 worker", **slurm(TFDIST_ROLES="worker=3")
    )
    refused(
        "TFDIST_ROLES: says 4 worker, but SLURM_STEP_NODELIST says 1 chief + 3 worker",
        {"chief": 1, "worker": 3},
        **slurm(TFDIST_ROLES="worker=4"),
    )
    for text in ("worker", "worker=x", "worker=2,worker=2", "worker=2;ps=1"):
        refused("TFDIST_ROLES: expected each role once", **slurm(TFDIST_ROLES=text))


def test_slurm_jobs_on_one_node_do_not_share_ports():
    ports = []
    for number in range(4711, 4811):  # such as the jobs of an array
        cluster = found(**slurm(SLURM_JOB_ID=str(number)))
        ports.append(int(cluster.worker[0].removeprefix("n1:")))
    ports.sort()
    assert ports[0] >= 10_000
    assert ports[-1] < 20_000
    assert (
        min(after - before for before, after in itertools.pairwise(ports)) >= 56
    )  # tasks of a job on one node


def test_slurm_cyclic_distribution_deals_round_robin():
    cluster = found(port=9000, **slurm(per_node="2,1", SLURM_DISTRIBUTION="cyclic:block", rank=1))
    assert cluster.worker == ("n1:9000", "n2:9000", "n1:9001")
    refused(
        "SLURM_DISTRIBUTION: expected block or cyclic, received 'plane=2'",
        **slurm(SLURM_DISTRIBUTION="plane=2"),
    )


@pytest.mark.parametrize("word", ["HET", "PACK"])
def test_slurm_numbers_the_ranks_of_a_heterogeneous_job_by_component(word):
    groups = {f"SLURM_JOB_NODELIST_{word}_GROUP_{i}": nodes for i, nodes in enumerate(["n3", "n[1-2]"])}
    job = slurm(nodes="n[1-3]", per_node="2,1,3", SLURM_HET_SIZE="2", **groups)
    assert found(port=9, **job).worker == ("n3:9", "n3:10", "n3:11", "n1:9", "n1:10", "n2:9")
    cyclic = {**job, "SLURM_DISTRIBUTION": "cyclic"}
    assert found(port=9, **cyclic).worker == ("n3:9", "n3:10", "n3:11", "n1:9", "n2:9", "n1:10")
    one = slurm(nodes="n[1-2]", per_node="2,1", rank=0, SLURM_HET_SIZE="2", **groups)
    assert found(port=9, **one).worker == ("n1:9", "n1:10", "n2:9")  # a step of the second component alone
    for wrong in ({"SLURM_HET_SIZE": "2"}, groups | {f"SLURM_JOB_NODELIST_{word}_GROUP_1": "n1"}):
        refused("SLURM_HET_SIZE: the hosts of", **slurm(nodes="n[1-3]", per_node="2,1,3", **wrong))


def test_slurm_outside_of_srun_is_a_single_process():
    assert (
        found(SLURM_JOB_ID="1", SLURM_PROCID="0", SLURM_NTASKS="4", SLURM_JOB_NODELIST="n[1-4]")
        == ClusterConfig()
    )


def test_a_terminal_of_slurm_is_no_cluster():
    shell = slurm(nodes="n1", per_node="1", rank=0, tasks=1)
    assert found(SLURM_PTY_PORT="39893", **shell) == ClusterConfig()
    tasks = slurm(tasks=4, SLURM_PTY_PORT="39893")  # of an srun that is typed in it
    assert len(found(**tasks).worker) == 4
    with pytest.raises(
        ConfigError, match=r"says 1 tasks, but sizes .*`env -u SLURM_PROCID` before the command"
    ):
        found({"worker": 2}, **shell)


def test_slurm_malformed_or_contradicting():
    refused("SLURM_STEP_TASKS_PER_NODE: is not set", SLURM_STEP_NODELIST="a", SLURM_PROCID="0")
    refused("SLURM_STEP_TASKS_PER_NODE: expected counts such as 2(x3),1, received 'x'", **slurm(per_node="x"))
    refused(
        "SLURM_STEP_TASKS_PER_NODE: counts 3 nodes, but SLURM_STEP_NODELIST names 2",
        **slurm(per_node="1(x3)"),
    )
    refused("SLURM_STEP_TASKS_PER_NODE: expected at most", **slurm(per_node="99999(x99999)"))
    refused(
        "SLURM_STEP_NUM_TASKS: says 5, but SLURM_STEP_TASKS_PER_NODE says 4 over 2 nodes", **slurm(tasks=5)
    )
    refused("SLURM_PROCID: expected a rank below 4 (SLURM_STEP_NODELIST), received 4", **slurm(rank=4))
    refused("SLURM_PROCID: expected a whole number", **slurm(rank="x"))
    refused("SLURM_STEP_NODELIST: expected a list such as", **slurm(nodes="n["))
    refused(
        "SLURM_STEP_NODELIST: says 4 tasks, but sizes says 1 chief + 2 worker",
        {"chief": 1, "worker": 2},
        **slurm(),
    )


def test_tf_config_inside_slurm_must_agree_with_it():
    config = '{"cluster": {"worker": ["a:1", "b:1"]}}'
    refused(
        "SLURM_STEP_NODELIST: says 4 tasks, but TF_CONFIG: cluster says 2 worker", TF_CONFIG=config, **slurm()
    )
    assert found(TF_CONFIG=config, **slurm(per_node="1(x2)", rank=0)).worker == ("a:1", "b:1")


# -- Kubernetes --


def test_kubernetes_indexed_job_with_a_service():
    environ = {"JOB_COMPLETION_INDEX": "2", "HOSTNAME": "my-train-2", "TFDIST_SERVICE": "svc"}
    assert found({"chief": 1, "worker": 2}, **environ) == ClusterConfig(
        chief=["my-train-0.svc:2222"],
        worker=["my-train-1.svc:2222", "my-train-2.svc:2222"],
        task=("worker", 1),
    )
    refused("JOB_COMPLETION_INDEX: Kubernetes tells a pod its index, and not how many", **environ)
    refused(
        "HOSTNAME: expected the pod's name, ending in -2, received 'x'",
        {"worker": 3},
        **{**environ, "HOSTNAME": "x"},
    )
    refused("JOB_COMPLETION_INDEX: expected a rank below 2", {"worker": 2}, **environ)
    refused(
        "JOB_COMPLETION_INDEX: expected a whole number",
        {"worker": 2},
        **{**environ, "JOB_COMPLETION_INDEX": "-1"},
    )


def test_kubernetes_pods_without_a_service_are_each_on_their_own():
    assert found(JOB_COMPLETION_INDEX="2", HOSTNAME="my-train-2") == ClusterConfig()


def test_kubernetes_jobset_replicated_jobs_are_the_roles():
    environ = {"JOB_COMPLETION_INDEX": "1", "JOBSET_NAME": "net", "REPLICATED_JOB_NAME": "worker"}
    sizes = {"chief": 1, "worker": 2, "ps": 1}
    assert found(sizes, **environ) == ClusterConfig(
        chief=["net-chief-0-0.net:2222"], worker=["net-worker-0-0.net:2222", "net-worker-0-1.net:2222"],
        ps=["net-ps-0-0.net:2222"], task=("worker", 1),
    )  # fmt: skip
    assert found(sizes, TFDIST_SERVICE="s", **environ).ps == ("net-ps-0-0.s:2222",)
    refused(
        "REPLICATED_JOB_NAME, JOB_COMPLETION_INDEX: unknown role 'wrk'",
        sizes,
        **{**environ, "REPLICATED_JOB_NAME": "wrk"},
    )
    refused("REPLICATED_JOB_NAME: is not set", sizes, JOB_COMPLETION_INDEX="1", JOBSET_NAME="net")


def test_kubernetes_jobs_of_a_role_each_are_one_cluster():
    environ = {"JOB_COMPLETION_INDEX": "1", "TFDIST_SERVICE": "svc", "REPLICATED_JOB_NAME": "worker"}
    sizes = {"chief": 1, "worker": 2}
    assert found(sizes, 2300, HOSTNAME="my-train-worker-1", **environ) == ClusterConfig(
        chief=["my-train-chief-0.svc:2300"],
        worker=["my-train-worker-0.svc:2300", "my-train-worker-1.svc:2300"],
        task=("worker", 1),
    )
    refused(
        "HOSTNAME: expected the pod's name, ending in -worker-1, received 'my-train-1'",
        sizes,
        HOSTNAME="my-train-1",
        **environ,
    )


# -- Open MPI --


def mpi(size=4, rank=3, local_size=2, local_rank=1, **more):
    names = {"SIZE": size, "RANK": rank, "LOCAL_SIZE": local_size, "LOCAL_RANK": local_rank}
    return {**{f"OMPI_COMM_WORLD_{name}": str(value) for name, value in names.items()}, **more}


def test_open_mpi_on_one_machine():
    cluster = found(**mpi(size=2, rank=1))
    assert cluster == ClusterConfig(worker=["127.0.0.1:2222", "127.0.0.1:2223"], task=("worker", 1))


def test_open_mpi_on_several_machines_is_told_the_hosts():
    cluster = ClusterConfig(worker=["a:2222", "a:2223", "b:2222", "b:2223"], task=("worker", 3))
    assert found(**mpi(TFDIST_HOSTS="a,b")) == cluster
    assert found(**mpi(SLURM_JOB_NODELIST="a,b")) == cluster
    refused("OMPI_COMM_WORLD_SIZE: ranks run on several hosts, and mpirun does not say which", **mpi())
    refused("expected 2 ranks in turn on each of the 3 hosts of TFDIST_HOSTS", **mpi(TFDIST_HOSTS="a,b,c"))
    refused("expected 2 ranks in turn on each of the 2 hosts", **mpi(TFDIST_HOSTS="a,b", local_rank=0))


def test_open_mpi_inside_slurm_is_not_contradicted_by_slurm():
    # Within a step, Slurm counts mpirun's helpers, one on each node.
    environ = mpi(SLURM_JOB_NODELIST="a,b", **slurm(nodes="a,b", per_node="1(x2)", rank=1))
    assert found(**environ).size("worker") == 4


def test_open_mpi_malformed():
    refused("OMPI_COMM_WORLD_RANK: expected a whole number, 0 or more, received ''", OMPI_COMM_WORLD_SIZE="2")
    refused("OMPI_COMM_WORLD_SIZE: expected a whole number, 1 or more", OMPI_COMM_WORLD_SIZE="0")


# -- a file and a scheduler --


def test_a_file_with_hosts_takes_its_task_from_the_rank(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("cluster: {chief: [n1.site:7], worker: [n2.site:7, 10.0.0.3:7]}")
    environ = slurm(nodes="n[1-3]", per_node="1(x3)", rank=2)
    assert ClusterConfig.from_yaml(path, environ=environ).task == ("worker", 1)
    path.write_text("cluster: {chief: [n1.site:7], worker: [n9.site:7, 10.0.0.3:7]}")
    with pytest.raises(
        ConfigError, match=r"worker\[0\]: says n9.site:7, but SLURM_STEP_NODELIST: worker\[0\] says n2:"
    ):
        ClusterConfig.from_yaml(path, environ=environ)


def test_a_file_with_counts_is_placed_by_the_scheduler(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("cluster: {worker: 2, ps: 1, port: 5000}")
    cluster = ClusterConfig.from_yaml(path, environ=slurm(rank=0))
    assert cluster == ClusterConfig(
        chief=["n1:5000"], ps=["n1:5001"], worker=["n2:5000", "n2:5001"], task=("chief", 0)
    )
    with pytest.raises(
        ConfigError, match=r"says 3 tasks, but .*x\.yaml:1: cluster says 1 chief \+ 2 worker \+ 1 ps"
    ):
        ClusterConfig.from_yaml(path, environ=slurm(nodes="n[1-3]", per_node="1(x3)"))
