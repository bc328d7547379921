import json
from pathlib import Path

import pytest

from tfdist.cluster.config import ClusterConfig
from tfdist.errors import ConfigError
from tfdist.trainer.config import Config, config_text, json_schema, read_config, recorded_sections

CONFIGS = Path(__file__).parents[3] / "configs"


def test_the_shipped_schema_is_the_one_of_this_version():
    # To renew it: tfdist schema > configs/tfdist.schema.json
    shipped = json.loads((CONFIGS / "tfdist.schema.json").read_text())
    assert shipped == json.loads(json.dumps(json_schema()))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_shipped_config_names_the_schema_and_is_read(path, tmp_path):
    assert path.read_text().startswith("# yaml-language-server: $schema=tfdist.schema.json\n")
    assert f"--config configs/{path.name}\n" in path.read_text()
    config = read_config(path).config
    everything = tmp_path / "everything.yaml"
    everything.write_text(config_text(config))
    assert read_config(everything).config == config


def test_options_of_the_model_may_be_lists_and_null(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("model: {name: 'my.models:build', options: {widths: [32, 64], decay: null}}\n")
    config = read_config(path).config
    assert config.model.options == {"widths": [32, 64], "decay": None}
    path.write_text(config_text(config))
    assert read_config(path).config == config


def test_the_files_of_a_run_have_no_secrets(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        "train: {steps: 7}\nengine: {kubernetes: {env: {WANDB_API_KEY: hidden}}}\n"
        "model: {name: mlp, options: {api_key: hidden, hf_token: hidden, pad_token: 5, tokenizer: bert, "
        "header: 'Authorization: Basic hidden'}}\n"
        "data: {name: 'https://me:hidden@host/x?sig=hidden'}\n"
    )
    sections = recorded_sections(read_config(path).config)
    assert sections["train"]["steps"] == 7
    options = sections["model"]["options"]
    assert options == {
        "api_key": "***",
        "hf_token": "***",
        "pad_token": 5,
        "tokenizer": "bert",
        "header": "Authorization: ***",
    }
    assert "hidden" not in json.dumps(sections)


def given(options):
    """Return the options that are set, also those within a section."""
    return {
        name: given(value) if isinstance(value, dict) else value
        for name, value in options.items()
        if value is not None
    }


def test_a_strategy_gets_the_options_that_the_file_names(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        "strategy: {name: multi_worker_mirrored}\ncommunication: {implementation: ring, bytes_per_pack: 0}\n"
    )
    settings = read_config(path)
    options = given(settings.config.strategy_options(settings.find_cluster(environ={})))
    expected = {
        "strategy": "multi_worker_mirrored",
        "device": "auto",
        "communication": {"implementation": "ring", "bytes_per_pack": 0},
    }
    assert options == expected


def test_the_heartbeat_timeout_of_a_file_holds_among_mirrored_workers(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("cluster: {worker: 2}\nwatch: {heartbeat_timeout: 60}\n")
    settings = read_config(path)
    mirrored = settings.find_cluster(environ={})
    assert settings.config.strategy_options(mirrored)["heartbeat_timeout"] == 60
    assert "heartbeat_timeout" not in settings.config.strategy_options(ClusterConfig())
    assert "heartbeat_timeout" not in settings.config.strategy_options(ClusterConfig.local(workers=1, ps=1))
    assert (settings.config.watch.silence_limit, Config().watch.silence_limit) == (60, 30)


def test_gpu_memory_is_the_workers_own_beside_ps(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("cluster: {chief: 1, worker: 2, ps: 1}\nstrategy: {device: gpu, memory_growth: true}\n")
    settings = read_config(path)
    cluster = settings.find_cluster(environ={})
    options = given(settings.config.strategy_options(cluster))
    assert options == {"strategy": "auto", "device": "gpu", "communication": {}}
    assert settings.config.strategy.serving() == {"device": "gpu", "memory_growth": True}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cluster: {worker: [a:1, b:1]}\nelastic: {min_workers: 3}", ":2: elastic.min_workers: expected at most 2 workers, received 3"),
        ("cluster: {chief: [a:1], worker: [b:1], ps: [c:1]}\nstrategy: {name: parameter_server}\nelastic: {}", ":3: elastic: is for clusters of multi_worker_mirrored"),
        ("elastic: {}", ":1: elastic: is for clusters of multi_worker_mirrored"),
        ("cluster: {worker: [a:1, b:1]}\nelastic: {}\ncheckpoint: {resume: never}", ":2: elastic: continues from checkpoints"),
    ],
)  # fmt: skip
def test_elastic_is_refused_where_it_cannot_be(tmp_path, text, problem):
    (tmp_path / "x.yaml").write_text(text)
    settings = read_config(tmp_path / "x.yaml")
    with pytest.raises(ConfigError) as found:
        settings.check_elastic(settings.find_cluster(environ={}))
    assert problem in str(found.value)


def test_an_accuracy_to_end_at_is_refused_beside_an_evaluator(tmp_path):
    text = "cluster: {worker: 2, evaluator: 1}\ntrain:\n  until_accuracy: 0.99"
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r":3: train\.until_accuracy: is not supported with an evaluator"):
        read_config(tmp_path / "x.yaml").check_evaluator()
    (tmp_path / "x.yaml").write_text(text.replace("evaluator: 1", "ps: 1, chief: 1"))
    read_config(tmp_path / "x.yaml").check_evaluator()


def test_elastic_may_be_left_out(tmp_path):
    for text in ("cluster: {worker: [a:1, b:1]}\nelastic: {min_workers: 2}", "cluster: {worker: [a:1, b:1]}"):
        (tmp_path / "x.yaml").write_text(text)
        settings = read_config(tmp_path / "x.yaml")
        settings.check_elastic(settings.find_cluster(environ={}))


@pytest.mark.parametrize(
    ("section", "old", "new"),
    [
        ("elastic", "wait: 60", "join_timeout"),
        ("launch", "isolate: never", "network_isolation"),
        ("train", "nonfinite: skip", "on_nan"),
        ("watch", "silence: 30", "heartbeat_timeout"),
    ],
)
def test_an_old_key_is_answered_with_its_new_name(tmp_path, section, old, new):
    key = old.partition(":")[0]
    (tmp_path / "x.yaml").write_text(f"{section}:\n  {old}\n")
    with pytest.raises(ConfigError) as found:
        read_config(tmp_path / "x.yaml")
    assert str(found.value) == f"{tmp_path}/x.yaml:2: {section}.{key}: was renamed. Write {new}"


def test_the_text_of_a_config_has_only_the_engines_that_it_sets(tmp_path):
    (tmp_path / "x.yaml").write_text("engine: {slurm: {restarts: 2}}")
    text = config_text(read_config(tmp_path / "x.yaml").config)
    assert "restarts: 2" in text
    assert "kubernetes" not in text
    (tmp_path / "x.yaml").write_text("train: {steps: 2}")
    assert "engine" not in config_text(read_config(tmp_path / "x.yaml").config)


@pytest.mark.parametrize(
    ("data", "is_run_elsewhere", "wanted", "expected"),
    [
        ("digits", False, "auto", "auto"),
        ("digits", False, "always", "always"),
        ("digits", True, "auto", "never"),
        ("s3://bucket/photos", False, "auto", "never"),
        ("s3://bucket/photos", False, "always", None),
    ],
)
def test_tasks_that_must_reach_an_object_store_are_not_isolated(
    tmp_path, data, is_run_elsewhere, wanted, expected
):
    (tmp_path / "x.yaml").write_text(f"data: {{name: '{data}'}}\nlaunch: {{network_isolation: {wanted}}}")
    settings = read_config(tmp_path / "x.yaml")
    if expected is not None:
        assert settings.network_isolation(is_run_elsewhere=is_run_elsewhere) == expected
        return
    with pytest.raises(ConfigError, match="must reach the object store"):
        settings.network_isolation(is_run_elsewhere=is_run_elsewhere)
