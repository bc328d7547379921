"""Each project that `tfdist init` can write is one that tfdist reads, and its commands are ones that it takes."""

import ast
import itertools
import json
import shlex

import pytest
import yaml
from absl.flags import FLAGS

from tfdist.cli import _flags_from_signature, _job_from_command_line, init
from tfdist.errors import ConfigError
from tfdist.strategies.options import StrategyOptions
from tfdist.strategies.strategy_names import strategy_name
from tfdist.trainer.config import read_config
from tfdist.trainer.new_project_answers import (
    DATA,
    MODELS,
    PLACES,
    STRATEGIES,
    Machine,
    Project,
    complete_answers,
)
from tfdist.trainer.new_project_files import project_files

NO_GPU, GPUS = Machine(cores=4, gpus=0), Machine(cores=8, gpus=4)
COMBINATIONS = list(itertools.product(PLACES, STRATEGIES, DATA, [*MODELS, "my_package.net:make"]))
HERE = [combination for combination in COMBINATIONS if combination[0] == "here"]  # where GPUs matter


def _project(machine=NO_GPU, **given):
    return complete_answers(given, machine)[0]


def _submitted(words):
    """Return the engine, the job and the options of a command line of `tfdist submit`."""
    names = list(_flags_from_signature._define_flags(_job_from_command_line.requested))
    FLAGS.set_gnu_getopt(True)
    try:
        rest = FLAGS(["submit", *words])[1:]
        return _job_from_command_line.requested(rest, **{name: FLAGS[name].value for name in names})
    finally:
        for name in names:
            delattr(FLAGS, name)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("machine", "combinations"), [(NO_GPU, COMBINATIONS), (GPUS, HERE)])
def test_each_project_is_read_and_each_of_its_commands_is_taken(folder, machine, combinations):
    assert len(COMBINATIONS) == 500
    for where, strategy, data, model in combinations:
        project = _project(machine, where=where, strategy=strategy, data=data, model=model)
        for name, text in project_files(project).items():
            (folder / name).write_text(text)
        if project.is_script:
            _check_script(folder, project)
        else:
            _check_config(folder, project)
        for line in project.run_commands():
            _check_command(project, shlex.split(line, comments=True))
        assert ("model.py" in project_files(project)) == (model == "own")


def test_with_force_a_file_that_is_a_device_stays_one(tmp_path, capsys):
    (tmp_path / "train.yaml").symlink_to("/dev/null")
    init._write(_project(where="here"), tmp_path, force=True)
    assert (tmp_path / "train.yaml").is_char_device()
    assert f"wrote {tmp_path / 'train.yaml'}" in capsys.readouterr().out


def _check_config(folder, project):
    settings = read_config(folder / "train.yaml")
    config, cluster = settings.config, settings.find_cluster(environ={})
    assert strategy_name(config.strategy.name, cluster) == project.strategy
    options = config.strategy_options(cluster)
    options.pop("strategy")
    StrategyOptions.of(**options).check(project.strategy)
    counts = {role: cluster.size(role) for role in ("chief", "worker", "ps")}
    chief = 1 if project.ps else 0
    expected = {"chief": chief, "worker": project.workers, "ps": project.ps}
    assert counts == (expected if project.is_cluster else dict.fromkeys(counts, 0))
    assert (config.data.name, config.model.name) == (project.data, project.function or project.model)
    assert config.data.batch_size >= project.workers
    assert all(len(line) <= 110 for line in (folder / "train.yaml").read_text().splitlines())


def _check_script(folder, project):
    tree = ast.parse((folder / "script.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    [start] = [call for call in calls if ast.unparse(call.func) == "tfdist.start"]
    automatic = {"multi_worker_mirrored", "parameter_server"}
    assert [argument.value for argument in start.args] == (
        [] if project.strategy in automatic else [project.strategy]
    )
    assert bool(start.keywords) == project.splits_cpu
    imports = [ast.unparse(node) for node in tree.body if isinstance(node, ast.ImportFrom)]
    module, _, function = (project.function or "tfdist.models:build").partition(":")
    assert f"from {module} import {function}" in imports


def _check_command(project, words):
    if words[:2] == ["tfdist", "submit"]:
        engine, job, options = _submitted(words[2:])
        assert engine.name == project.where
        counts = {"chief": 1 if project.ps else 0, "worker": project.workers, "ps": project.ps}
        alone = {"chief": 0, "worker": 1, "ps": 0}
        wanted = counts if project.is_cluster else alone
        assert {role: job.counts.get(role, 0) for role in wanted} == wanted
        if project.model in ("mnist_cnn", "own"):  # of the others it differs in the config's text alone
            assert engine.render(job, options)
    elif words[:2] == ["tfdist", "launch"]:
        assert words[-3:] == ["--", "python", "script.py"]
        assert words[words.index("--workers") + 1] == str(project.workers)
    else:
        assert words in (
            ["python", "script.py"],
            ["tfdist", "train", "--config", "train.yaml"],
            ["tfdist", "train", "--config", "train.yaml", "--smoke"],
            ["tfdist", "train", "--config", "train.yaml", "--dry_run"],
        )


def test_the_defaults_follow_from_the_machine_and_the_answers(folder):
    assert complete_answers({}, NO_GPU) == (
        Project("here", "multi_worker_mirrored", "digits", "mnist_cnn", workers=2),
        {
            "where": "here",
            "strategy": "multi_worker_mirrored",
            "workers": 2,
            "data": "digits",
            "model": "mnist_cnn",
        },
    )
    assert _project(GPUS).strategy == "mirrored"
    assert not _project(GPUS).splits_cpu
    assert not _project(Machine(cores=4, gpus=1), strategy="mirrored").splits_cpu
    assert _project(GPUS, strategy="multi_worker_mirrored").workers == 4
    assert _project(where="ssh", hosts="a, b,me@c").workers == 3
    assert _project(data="cifar10").model == "cifar10_cnn"
    assert _project(data="./photos").model == "resnet"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"where": "slum"}, "--where: is unknown: 'slum'. Did you mean 'slurm'?"),
        ({"strategy": "mirored"}, "--strategy: is unknown: 'mirored'. Did you mean 'mirrored'?"),
        ({"workers": 0}, "--workers: expected a number from 1 to 999, received 0"),
        ({"ps": 1}, "--ps: has no effect with multi_worker_mirrored. Leave it out"),
        (
            {"strategy": "one_device", "workers": 2},
            "--workers: has no effect with one_device. Leave it out",
        ),
        ({"hosts": "node1"}, "--hosts: has no effect with here. Leave it out"),
        ({"where": "ssh", "hosts": ","}, "--hosts: expected hosts, such as node1,me@node2, received ''"),
        (
            {"where": "ssh", "hosts": "-oProxyCommand=x"},
            "--hosts: expected hosts, such as node1,me@node2, received '-oProxyCommand=x'",
        ),
        ({"data": "./none"}, "--data: ./none does not exist. Name a folder of images, or a data set"),
        ({"data": "a\nb"}, "--data: expected a name, a folder or script, received 'a\\nb'"),
        (
            {"model": "resnett"},
            "--model: is unknown: 'resnett'. Did you mean 'resnet'?",
        ),
    ],
)
def test_a_mistake_is_one_line(given, line):
    with pytest.raises(ConfigError) as error:
        _project(**given)
    assert str(error.value) == line


def test_workers_that_are_as_said_do_no_harm():
    assert _project(strategy="one_device", workers=1) == _project(strategy="one_device")
    assert _project(GPUS, strategy="mirrored", workers=4) == _project(GPUS, strategy="mirrored")


def test_names_are_quoted_where_yaml_needs_it(folder):
    for data in ("yes", "1", "a: b", "é #x", "~/x", "'"):
        text = project_files(_project(where="slurm", data=data))["train.yaml"]
        assert yaml.safe_load(text)["data"]["name"] == data


@pytest.mark.parametrize(
    ("data", "place", "expected"),
    [
        ("./photos", "mine", "../photos"),
        ("photos", "mine", "../photos"),
        ("./photos", "a/b", "../../photos"),
        ("./photos", ".", "./photos"),
        ("digits", "mine", "digits"),
    ],
)
def test_a_path_of_data_is_right_in_the_folder_of_the_project(folder, capsys, data, place, expected):
    (folder / "digits").mkdir()  # which is not what the name means
    init.main([place], data=data, where="here")
    name = read_config(folder / place / "train.yaml").config.data.name
    assert name == expected
    assert f"cd {place}\n" in capsys.readouterr().out or place == "."


@pytest.mark.parametrize(
    ("where", "data", "expected"),
    [
        ("slurm", "./photos", "../photos"),
        ("kubernetes", "./photos", "./photos"),  # in the image
        ("ray", "./photos", "./photos"),  # of what is sent to the nodes
        ("slurm", "photos", "../photos"),
        ("slurm", "emnist", "emnist"),
    ],
)
def test_a_path_of_other_machines_is_theirs(folder, tmp_path, monkeypatch, where, data, expected):
    (folder / "emnist").mkdir()
    (tmp_path / "sets" / "emnist").mkdir(parents=True)  # comes before a folder of that name
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "sets"))
    init.main(["mine"], data=data, where=where)
    assert read_config(folder / "mine" / "train.yaml").config.data.name == expected


@pytest.mark.parametrize("data", ["digits", "script"])
@pytest.mark.parametrize("where", ["here", "slurm", "kubernetes"])
def test_a_function_of_the_users_own_is_found_by_the_commands(folder, capsys, data, where):
    (folder / "my_package").mkdir()
    (folder / "my_package" / "net.py").write_text("def make(image_shape, classes):\n    pass\n")
    init.main(["my project"], data=data, where=where, model="my_package.net:make")
    printed = capsys.readouterr().out.partition("Next:")[2]
    commands = [shlex.split(line, comments=True) for line in printed.splitlines() if line.strip()]
    assert not any(command[0] == "cd" for command in commands)
    if data == "script":
        script = ["env", "PYTHONPATH=.", "python", "my project/script.py"]
        assert commands[-1][-4:] == script
        copies = [["my_package", "/app/my_package"], ["my project/script.py", "/app/my project/script.py"]]
        for copy in copies if where == "kubernetes" else []:
            assert ["echo", f"COPY {json.dumps(copy)}", ">>", "Dockerfile"] in commands
        return
    places = [command[command.index("--config") + 1] for command in commands if "--config" in command]
    assert set(places) == {"my project/train.yaml"}
    config = read_config(folder / places[0]).config
    assert config.model.name == "my_package.net:make"
    assert config.engine.dockerfile.copy == (["my_package"] if where == "kubernetes" else [])


@pytest.mark.parametrize("where", ["kubernetes", "ray"])
def test_a_script_that_the_tasks_cannot_get_is_refused(folder, monkeypatch, where):
    (folder / "here" / "my_package").mkdir(parents=True)
    monkeypatch.chdir(folder / "here")
    with pytest.raises(
        ConfigError, match=rf"^\.\./x: with {where}, tasks get only what is in the current folder"
    ):
        init.main(["../x"], data="script", where=where, model="my_package.net:make")
    assert not (folder / "x").exists()
