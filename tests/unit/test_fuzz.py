"""Any bytes at all end in a ClusterConfig or in a ConfigError of one line, soon.

6,000 seeded mutations of real inputs, and what hypothesis makes up from nothing. "Soon" is one second of this
process's own CPU time, so that a busy machine does not count.
"""

import contextlib
import json
import os
import random
import signal

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfdist.cluster.config import ClusterConfig
from tfdist.errors import ConfigError
from tfdist.trainer.config import Settings, read_config

TF_CONFIGS = [
    b"{}",
    b'{"cluster": {"chief": ["a:1"], "worker": ["b:1", "[::1]:2"], "ps": ["10.0.0.1:3"]}, "task": {"type": "worker", "index": 1}}',
    b'{"cluster": {"master": ["m:1"]}, "task": {"type": "master", "index": 0}, "environment": "cloud", "rpc_layer": "grpc"}',
    b'{"cluster": {"worker": ["w:1"], "evaluator": ["e:1"]}, "task": {"type": "evaluator", "index": 0}}',
]  # fmt: skip
YAMLS = [
    b"cluster: {worker: 2, ps: 1}\n",
    b"cluster:\n  chief: [10.0.0.1:2222]\n  worker:\n    - 10.0.0.2:2222\n    - gpu-1.example:2222\nstrategy:\n  name: auto\n",
    b"# c\ncluster: {worker: ['[::1]:1'], port: 1e3}\n",
    b"a: &a [x, x]\nb: &b [*a, *a]\ncluster: *b\n",
]
PIECES = [b"[", b"{", b"]" b"}", b'"', b"'", b":", b",", b"\n", b"\t", b"- ", b"? ", b"&a ", b"*a", b"!!python/object ", b"<<: ", b"\x00", b"\xff",
          b"\xef\xbb\xbf", b"\\ud800", "٣".encode(), b"1e999", b"9" * 50, b"null", b"true", b"NaN", b"---\n", b"...\n", b"%YAML 9.9\n", b"|\n", b">\n",
          b"worker", b"cluster", b"task", b"index", b"-1", b"65536", b"[" * 3000, b'{"a":' * 3000, b"a: " * 3000, b"x" * 20_000, b"\r", b"\x85", "\u2028".encode()]  # fmt: skip


_CPU_SECONDS = 10.0  # the slowest inputs take 0.4 s where the processor is fast


@contextlib.contextmanager
def within_seconds():
    def too_slow(*_):
        raise TimeoutError(f"more than {_CPU_SECONDS:g} s of CPU time for one input")

    previous = signal.signal(signal.SIGVTALRM, too_slow)
    signal.setitimer(signal.ITIMER_VIRTUAL, _CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def ends_well(read, kind=ClusterConfig):
    """Read, and say whether it was taken."""
    with within_seconds():
        try:
            assert isinstance(read(), kind)
        except ConfigError as error:
            assert str(error).isprintable()  # which no line end is
            assert len(str(error)) < 2000
            return False
    return True


def mutated(rng, data):
    data = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at, to = sorted(rng.randint(0, len(data)) for _ in range(2))
        way = rng.randrange(6)
        if way == 0:
            data[at:at] = rng.choice(PIECES)
        elif way == 1:
            del data[at : min(to, at + 10)]
        elif way == 2:
            data[at:at] = data[at : min(to, at + 40)] * rng.randint(1, 20)
        elif way == 3 and data:
            data[min(at, len(data) - 1)] = rng.randrange(256)
        elif way == 4:
            data[at:to] = data[at:to][::-1]
        else:
            data[at : at + 3] = rng.choice(PIECES)
    return bytes(data)


def test_3000_mutated_tf_configs():
    rng = random.Random(20170101)
    taken = 0
    for _ in range(3000):
        data = mutated(rng, rng.choice(TF_CONFIGS))
        taken += ends_well(lambda data=data: ClusterConfig.from_tf_config(data))
    assert 100 < taken < 2900  # both ends are reached


def test_3000_mutated_config_files(tmp_path):
    rng = random.Random(20170102)
    path = tmp_path / "x.yaml"
    taken = 0
    for i in range(3000):
        path.write_bytes(mutated(rng, rng.choice(YAMLS)))
        if i % 2:
            taken += ends_well(lambda: ClusterConfig.from_yaml(path, environ={}))
        else:
            taken += ends_well(lambda: read_config(path), Settings)
    assert 50 < taken < 2950


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["a:1", "b:2", "worker"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["cluster", "task", "worker", "ps"]), inner),
    max_leaves=12,
)  # fmt: skip
shaped = st.fixed_dictionaries({"cluster": json_values, "task": json_values}) | json_values


@settings(max_examples=400)
@given(st.binary(max_size=300))
def test_any_bytes_as_tf_config(data):
    ends_well(lambda: ClusterConfig.from_tf_config(data))


@settings(max_examples=400)
@given(shaped)
def test_any_json_as_tf_config(value):
    ends_well(lambda: ClusterConfig.from_tf_config(json.dumps(value)))


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300) | shaped.map(lambda value: yaml.safe_dump(value).encode()))
def test_any_yaml_as_a_config_file(tmp_path, data):
    path = tmp_path / "x.yaml"
    path.write_bytes(data)
    ends_well(lambda: ClusterConfig.from_yaml(path, environ={}))


@settings(max_examples=300)
@given(
    st.dictionaries(
        st.sampled_from(
            ["CLUSTER_SPEC", "SM_HOSTS", "SM_CURRENT_HOST", "SM_RESOURCE_CONFIG", "JOB_COMPLETION_INDEX", "JOBSET_NAME",
             "REPLICATED_JOB_NAME", "TFDIST_SERVICE", "HOSTNAME", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
             "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "TFDIST_HOSTS", "SLURM_STEP_NODELIST",
             "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID", "SLURM_DISTRIBUTION", "SLURM_JOB_ID"]
        ),
        st.text(max_size=20) | st.sampled_from(["0", "1", "2", "a[0-3]", "2(x2)", "a,b", '["a","b"]', "a", "9" * 30, "a[0-99999]"]),
    ),
    st.none() | st.dictionaries(st.sampled_from(["chief", "worker", "ps", "evaluator", "x"]), st.integers(-1, 5)),
)  # fmt: skip
def test_any_scheduler_variables(environ, sizes):
    ends_well(lambda: ClusterConfig.from_environment(sizes, environ=environ))


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 10_000_000,
        b"[" * 200_000,
        b"- " * 100_000,
        b"a: " * 80_000,
        b"\n".join(b"k%d: 1" % i for i in range(20_000)),
        b"cluster: {worker: [" + b", ".join(b"h%d:1" % i for i in range(20_000)) + b"]}",
        b"cluster: {worker: [" + b"a:1, " * 40_000 + b"]}",
        b"cluster: {" + b"w" * 200_000 + b": 1}",
        b'"' + b"\\x41" * 60_000 + b'": 1',
        b"a: |\n" + b" \n" * 100_000,
        b"# " + b"x" * 250_000,
        b"'" * 250_000,
        b"a: [" + b"'," * 100_000 + b"]",
        b"? " * 100_000,
        b"{" * 250_000,
        b"&a " * 80_000,
    ],
    ids=range(16),
)
def test_large_and_deep_files_are_answered_not_waited_for(tmp_path, data):
    path = tmp_path / "x.yaml"
    path.write_bytes(data)
    ends_well(lambda: ClusterConfig.from_yaml(path, environ={}))


def test_the_environment_of_the_process_may_hold_any_bytes(monkeypatch):
    monkeypatch.setitem(os.environ, "TF_CONFIG", os.fsdecode(b'{"cluster": {"worker": ["\xe9:1"]}}'))
    with pytest.raises(ConfigError, match="TF_CONFIG: is not UTF-8"):
        ClusterConfig.from_environment()
