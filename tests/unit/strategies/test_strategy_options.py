"""What `auto` stands for is decided in one place, without TensorFlow."""

import subprocess
import sys

import pytest

from tfdist.cluster.config import ClusterConfig
from tfdist.errors import ConfigError
from tfdist.strategies.options import CommunicationOptions, StrategyOptions, is_gpu_used
from tfdist.strategies.strategy_names import strategy_name


def cluster(task=None, **roles):
    made = ClusterConfig(
        **{role: tuple(f"{role}{n}:2222" for n in range(count)) for role, count in roles.items()}
    )
    return made.with_task(task) if task else made


@pytest.mark.parametrize(
    ("made", "devices", "name"),
    [
        (cluster(), 1, "one_device"),
        (cluster(), 2, "mirrored"),
        (cluster(worker=1), 1, "one_device"),
        (cluster(chief=1, worker=1), 1, "multi_worker_mirrored"),
        (cluster(worker=2), 4, "multi_worker_mirrored"),
        (cluster(chief=1, worker=2, ps=1), 4, "parameter_server"),
        (cluster(("evaluator", 0), chief=1, worker=2, ps=1, evaluator=1), 1, "one_device"),
    ],
)
def test_auto_takes_the_strategy_that_cluster_and_devices_call_for(made, devices, name):
    assert strategy_name("auto", made, devices=devices) == name
    assert strategy_name("parameter_server_sync", made, devices=devices) == "parameter_server_sync"


def test_an_unknown_strategy_is_refused():
    with pytest.raises(ConfigError, match="strategy: is unknown: 'mirored'"):
        strategy_name("mirored", cluster())


@pytest.mark.parametrize(
    ("options", "on_cpus", "on_gpus"),
    [
        ({}, True, False),
        ({"implementation": "auto"}, True, False),
        ({"bytes_per_pack": 0}, False, False),
        ({"implementation": "tcp"}, True, True),
        ({"implementation": "ring"}, False, False),
    ],
)
def test_auto_takes_tcp_on_cpus_unless_packs_of_tensorflow_are_asked_for(options, on_cpus, on_gpus):
    communication = CommunicationOptions(**options)
    assert communication.may_use_tcp(on_gpus=False) == on_cpus
    assert communication.may_use_tcp(on_gpus=True) == on_gpus


@pytest.mark.parametrize(
    ("device", "gpus", "is_used"),
    [("auto", 0, False), ("auto", 2, True), ("cpu", 2, False), ("gpu", 1, True)],
)
def test_auto_takes_gpus_if_there_are_any(device, gpus, is_used):
    assert is_gpu_used(device, gpus) == is_used


def test_options_of_another_strategy_are_refused_by_their_names_in_a_config():
    options = StrategyOptions(communication=CommunicationOptions(timeout=5.0))
    options.check("parameter_server")
    with pytest.raises(ConfigError, match=r"communication\.timeout: has no effect with mirrored"):
        options.check("mirrored")
    with pytest.raises(ConfigError, match="heartbeat_timeout: has no effect with parameter_server"):
        StrategyOptions(heartbeat_timeout=60.0).check("parameter_server")
    with pytest.raises(ConfigError, match="make_strategy: heartbeat_timeout: expected a number >= 5"):
        StrategyOptions.of(heartbeat_timeout=4.0)


def test_the_options_load_no_tensorflow():
    code = "import sys, tfdist.strategies.options; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
