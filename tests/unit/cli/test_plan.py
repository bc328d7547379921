import json
import subprocess
import sys
from pathlib import Path

import pytest

from commands import python, tfdist
from tfdist.cli.plan import main

HOSTS = "cluster:\n  chief: [10.0.0.1:2222]\n  worker: [10.0.0.2:2222, 10.0.0.3:2222]\n  ps: ['[::4]:2222']\n"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "it's.yaml"  # a name that a shell must be protected from
    path.write_text(HOSTS)
    return path


def plan(*arguments, **environ):
    return tfdist("plan", *arguments, **environ)


def test_it_prints_each_task_with_its_tf_config_and_command(config):
    run = plan("--config", config)
    assert run.returncode == 0, run.stderr
    blocks = run.stdout.split("\n\n")
    head, hint = blocks[0].splitlines()
    assert head == f"4 tasks, from {config}:1: cluster."
    assert hint.startswith("Set the same TFDIST_SECRET for all of them first: ")
    title, tf_config, command = blocks[4].splitlines()
    assert title == "ps:0 on ::4, port 2222"
    assert json.loads(tf_config.strip().removeprefix("TF_CONFIG="))["task"] == {"type": "ps", "index": 0}
    shown = subprocess.run(["sh", "-c", f"printf '%s\\n' {command.strip()}"], capture_output=True, text=True)
    assert shown.stdout.splitlines() == [
        "python",
        "-m",
        "tfdist.train",
        "--config",
        str(config),
        "--task",
        "ps:0",
    ]


@pytest.mark.parametrize(
    ("workers", "communication", "without"),
    [
        (2, "{}", "tensors travel over TensorFlow's slower gRPC."),
        (2, "{implementation: tcp}", "the tasks end with status 2."),
        (2, "{encryption: tls}", "the tasks end with status 2."),
        (2, "{implementation: ring}", None),
        (1, "{}", None),
    ],
)
def test_it_asks_for_a_secret_where_one_has_an_effect(tmp_path, capsys, workers, communication, without):
    addresses = [f"10.0.0.{host}:2222" for host in range(workers)]
    (tmp_path / "x.yaml").write_text(f"cluster: {{worker: {addresses}}}\ncommunication: {communication}")
    main(str(tmp_path / "x.yaml"))
    _, asked, after = capsys.readouterr().out.partition("Set the same TFDIST_SECRET for all of them first: ")
    assert (after.splitlines()[0] if asked else None) == (without and f"without it, {without}")


def test_a_shell_evaluates_the_export(config):
    line = plan("--config", config, "--task", "worker:1", "--format", "export").stdout
    shell = subprocess.run(["sh", "-c", f'{line}\nprintf %s "$TF_CONFIG"'], capture_output=True, text=True)
    assert json.loads(shell.stdout) == {
        "cluster": {
            "chief": ["10.0.0.1:2222"],
            "worker": ["10.0.0.2:2222", "10.0.0.3:2222"],
            "ps": ["[::4]:2222"],
        },
        "task": {"type": "worker", "index": 1},
    }


def test_json_is_for_programs(config):
    entries = json.loads(plan("--config", config, "--format=json").stdout)
    assert [entry["task"] for entry in entries] == ["chief:0", "worker:0", "worker:1", "ps:0"]
    assert entries[3]["address"] == "[::4]:2222"
    assert entries[1]["tf_config"]["task"] == {"type": "worker", "index": 0}
    (entry,) = json.loads(plan("--config", config, "--format=json", "--task=worker:1").stdout)
    assert entry["task"] == "worker:1"


def test_a_local_cluster_is_started_by_one_command(config):
    config.write_text("cluster: {worker: 2, ps: 1}\n")
    run = plan("--config", config)
    assert "All on this machine" in run.stdout
    assert "--task" not in run.stdout
    config.write_text("strategy: {name: one_device}\n")
    assert plan("--config", config).stdout.startswith("One process, no TF_CONFIG:")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "tfdist: --config: is missing. Name a file: --config ps2w.yaml, which `tfdist configs ps2w` writes\n"),
        (["--config", "none.yaml"], "tfdist: none.yaml: cannot be read: No such file or directory. Name a YAML file\n"),
        (["--confg", "x"], "tfdist: command line: Unknown command line flag 'confg'. Did you mean: config. See --help\n"),
        (["--config", "x", "more"], "tfdist: command line: unexpected argument 'more'. Flags are --name=value; see --help\n"),
        (["--format", "xml"], "tfdist: command line: flag --format=xml: value should be one of <text|json|export>. See --help\n"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_status_2(arguments, message):
    run = plan(*arguments)
    assert (run.returncode, run.stdout, run.stderr) == (2, "", message)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (HOSTS, ["--task=worker:2"], "task: expected an index in 0…1 ({path}:3: cluster.worker lists 2), received 2"),
        (HOSTS, ["--format=export"], "--format export: needs one task. Add --task worker:0"),
        ("cluster: {worker: 2}", ["--format=export", "--task=worker:0"], "{path}:1: cluster: has the number of tasks, not their addresses"),
        ("cluster: {wroker: 2}", [], "{path}:1: cluster.wroker: unknown key. Did you mean 'worker'?"),
        ("clustre: {worker: 2}", [], "{path}:1: clustre: unknown key. Did you mean 'cluster'?"),
    ],
)  # fmt: skip
def test_a_wrong_config_is_one_line_and_status_2(config, text, arguments, message):
    config.write_text(text)
    run = plan("--config", config, *arguments)
    assert run.returncode == 2
    assert run.stderr.startswith("tfdist: " + message.format(path=config))
    assert run.stderr.count("\n") == 1


def test_a_scheduler_says_where(config):
    config.write_text("cluster: {worker: 2}\n")
    tf_config = json.dumps({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}})
    run = plan("--config", config, TF_CONFIG=tf_config)
    assert "worker:1 on b, port 2" in run.stdout
    assert run.stderr == "tfdist: read the cluster from TF_CONFIG: 2 worker; this is worker:1\n"
    contradiction = json.dumps({"cluster": {"worker": ["a:1"]}})
    assert plan("--config", config, TF_CONFIG=contradiction).returncode == 2


def test_both_ways_to_call_it_are_the_same(config):
    other = python(Path(sys.executable).with_name("tfdist"), "plan", "--config", config)
    assert other.stdout == plan("--config", config).stdout
    for arguments, status in ([], 2), (["pln"], 2), (["--help"], 0), (["--version"], 0):
        assert tfdist(*arguments).returncode == status
    assert plan("--help").returncode == 0
    assert "--format" in plan("--help").stdout


def test_a_reader_that_has_enough_is_no_error(config):
    config.write_text("cluster: {worker: [" + ", ".join(f"h{i}:1" for i in range(500)) + "]}")
    pipe = f'set -o pipefail; {sys.executable} -m tfdist plan --config="$0" | head -1'
    run = subprocess.run(["bash", "-c", pipe, config], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0
    assert run.stderr == ""


def test_the_schema_is_that_of_the_config():
    schema = json.loads(tfdist("schema").stdout)
    assert set(schema["$defs"]["Config"]["properties"]) >= {"cluster", "strategy"}
    assert schema["$defs"]["Config"]["additionalProperties"] is False


def test_an_evaluator_without_an_address_has_a_plan(config):
    words = "--config", config, "--task", "evaluator"
    text = plan(*words).stdout
    assert "evaluator:0 on any host" in text
    assert "--task evaluator:0" in text
    (entry,) = json.loads(plan(*words, "--format=json").stdout)
    assert (entry["task"], entry["address"]) == ("evaluator:0", None)
