"""Compare ClusterConfig with TensorFlow's own resolvers on the same environment, for any valid cluster."""

import json
import os
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.roles_and_task_counts import ROLES

tf = pytest.importorskip("tensorflow")
from tensorflow.python.distribute import multi_worker_util  # noqa: E402
from tensorflow.python.distribute.cluster_resolver import sagemaker_cluster_resolver  # noqa: E402

resolvers = tf.distribute.cluster_resolver

labels = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
names = st.lists(labels, min_size=1, max_size=3).map(".".join)
ipv6 = st.ip_addresses(v=6).map(lambda address: f"[{address}]")
hosts = names | ipv6 | st.ip_addresses(v=4).map(str)
addresses = st.builds("{}:{}".format, hosts, st.integers(1, 65535))


@st.composite
def clusters(draw, evaluator=True):
    chief, ps = draw(st.booleans()), draw(st.integers(0, 4))
    worker = draw(st.integers(0 if chief and not ps else 1, 6))
    evaluator = evaluator and draw(st.booleans())
    sizes = {"chief": int(chief), "worker": worker, "ps": ps, "evaluator": int(evaluator)}
    pool = iter(
        draw(st.lists(addresses, unique=True, min_size=sum(sizes.values()), max_size=sum(sizes.values())))
    )
    roles = {role: tuple(next(pool) for _ in range(size)) for role, size in sizes.items()}
    cluster = ClusterConfig(**roles)
    return cluster.with_task(draw(st.sampled_from(cluster.tasks())))


def environment(**variables):
    return mock.patch.dict(os.environ, variables, clear=True)


@given(clusters())
def test_a_cluster_survives_tf_config(cluster):
    read = ClusterConfig.from_tf_config(cluster.tf_config_json())
    assert read == (cluster if cluster.task.type == "evaluator" else cluster.training())
    assert hash(read) == hash(ClusterConfig.from_tf_config(cluster.tf_config_json().encode()))


@given(clusters())
def test_a_cluster_survives_yaml(cluster):
    import tempfile

    roles = {role: list(getattr(cluster, role)) for role in ROLES if cluster.size(role)}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(json.dumps({"cluster": roles}))  # JSON is YAML
        file.flush()
        assert ClusterConfig.from_yaml(file.name, task=str(cluster.task), environ={}) == cluster


@given(clusters())
def test_tensorflow_reads_the_same_from_tf_config(cluster):
    with environment(TF_CONFIG=cluster.tf_config_json()):
        theirs = resolvers.TFConfigClusterResolver()
        assert (theirs.task_type, theirs.task_id) == cluster.task
        training = {role: list(getattr(cluster, role)) for role in ROLES[:3] if cluster.size(role)}
        spec = theirs.cluster_spec().as_dict()
        spec.pop("evaluator", None)
        assert (
            spec
            == training
            == cluster.cluster_spec().as_dict()
            == cluster.resolver().cluster_spec().as_dict()
        )
        assert ClusterConfig.from_environment().task == cluster.task


@given(clusters())
def test_the_chief_is_tensorflows(cluster):
    theirs = multi_worker_util.is_chief(cluster.cluster_spec(), *cluster.task)
    assert cluster.is_chief == theirs


@given(clusters(evaluator=False))
def test_the_resolver_says_the_same_task(cluster):
    ours = cluster.resolver()
    assert (ours.task_type, ours.task_id) == cluster.task
    assert ours.master() == f"grpc://{cluster.address(cluster.task)}"


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,3}[0-9]{1,3}", fullmatch=True), st.integers(1, 4), min_size=1, max_size=5
    ),
    st.booleans(),
    st.data(),
)
def test_slurm_is_read_as_tensorflow_reads_it(tasks_of_host, has_roles, data):
    # TensorFlow sorts the hosts; Slurm's lists come sorted.
    tasks_of_host = dict(sorted(tasks_of_host.items()))
    total = sum(tasks_of_host.values())
    sizes = {"worker": total}
    if has_roles and total > 2:
        sizes = {"chief": 1, "ps": data.draw(st.integers(1, total - 2))}
        sizes["worker"] = total - sum(sizes.values())
    environ = {
        "SLURM_STEP_NODELIST": ",".join(tasks_of_host),
        "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, tasks_of_host.values())),
        "SLURM_STEP_NUM_TASKS": str(total),
        "SLURM_PROCID": str(data.draw(st.integers(0, total - 1))),
    }
    with environment(**environ):
        theirs = resolvers.SlurmClusterResolver(
            sizes if has_roles else None, port_base=9000, gpus_per_node=4, gpus_per_task=1, auto_set_gpu=False
        )
        spec = theirs.cluster_spec()
        ours = ClusterConfig.from_environment(sizes if has_roles else None, port=9000)
        assert ours.cluster_spec().as_dict() == spec.as_dict()
        assert ours.task == theirs.get_task_info()


@given(st.lists(labels, unique=True, min_size=1, max_size=12), st.data())
def test_sagemaker_is_read_as_tensorflow_reads_it(names, data):
    with environment(SM_HOSTS=json.dumps(names), SM_CURRENT_HOST=data.draw(st.sampled_from(names))):
        theirs = sagemaker_cluster_resolver.SageMakerClusterResolver(port=2300)
        ours = ClusterConfig.from_environment(port=2300)
        assert ours.cluster_spec().as_dict() == theirs.cluster_spec().as_dict()
        assert ours.task == (theirs.task_type, theirs.task_id)
