"""The Cloud ML trainer of 2017: a master, a ps and a worker that know TF_CONFIG alone, and a client."""

import json
import re
from pathlib import Path

import pytest
import tensorflow as tf

from commands import script_forked, start_script
from tfdist.cluster.config import ClusterConfig

EXAMPLE = Path(__file__).parents[2] / "examples" / "cloud_mnist"


@pytest.mark.slow
@pytest.mark.usefixtures("forking")
def test_master_worker_and_ps_train_by_tf_config_and_a_client_predicts(tmp_path):
    cluster = ClusterConfig.local(workers=1, ps=1)
    addresses = {"master": list(cluster.chief), "worker": list(cluster.worker), "ps": list(cluster.ps)}
    flags = ["--max_steps=12", "--checkpoint=6", "--batch_size=100"]
    flags += [f"--log_dir={tmp_path / 'logs'}", f"--model_dir={tmp_path / 'models'}"]
    running = {}
    for role in addresses:
        task = {"cluster": addresses, "task": {"type": role, "index": 0}}
        running[role] = start_script(
            EXAMPLE / "task.py", *flags, output=tmp_path / role, TF_CONFIG=json.dumps(task)
        )
    try:
        ends = {role: process.wait() for role, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
    told = {role: (tmp_path / role).read_text() for role in addresses}
    assert ends == dict.fromkeys(addresses, 0), told
    tests = re.findall(r"step (\d+) of 12: test loss (\d+\.\d+), accuracy (0\.\d+)", told["master"])
    assert [int(step) for step, _, _ in tests] == [6, 12]
    assert not re.search("test loss", told["worker"] + told["ps"])
    assert f"the model is in {tmp_path / 'models' / '12'}" in told["master"]
    curves = {path.parent.name for path in (tmp_path / "logs" / "summaries").rglob("events.*")}
    assert curves == {"train", "test"}
    pictures = []
    for i, shade in enumerate((0, 255)):
        pictures.append(tmp_path / f"{i}.png")
        pictures[i].write_bytes(tf.io.encode_png(tf.fill([28, 28, 1], tf.constant(shade, tf.uint8))).numpy())
    client = script_forked(EXAMPLE / "client.py", f"--model_dir={tmp_path / 'models'}", *pictures)
    assert client.returncode == 0, client.stderr
    answers = [json.loads(line) for line in client.stdout.splitlines()]
    assert [(each["key"], each["picture"]) for each in answers] == [
        (0, str(pictures[0])),
        (1, str(pictures[1])),
    ]
    assert all(0 <= each["prediction"] <= 9 and 0.1 <= each["score"] <= 1 for each in answers)
