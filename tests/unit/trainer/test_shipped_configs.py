"""The configs that are installed with tfdist can be listed and copied."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from commands import tfdist
from tfdist.errors import ConfigError
from tfdist.trainer.config import read_config
from tfdist.trainer.shipped_configs import copy_config, describe_config, shipped_configs

ROOT = Path(__file__).parents[3]


def test_all_configs_are_listed_with_what_they_are_for():
    run = tfdist("configs")

    assert run.returncode == 0, run.stderr
    lines = dict(line.split(maxsplit=1) for line in run.stdout.splitlines())
    assert lines.keys() == {path.stem for path in (ROOT / "configs").glob("*.yaml")}
    assert lines["ps2w"].startswith("MNIST on 1 parameter server and 2 workers")
    assert all(30 < len(text) < 170 and "\n" not in text for text in lines.values())


def test_a_copy_is_the_config_and_its_schema(tmp_path):
    run = tfdist("configs", "ps2w", "--output", tmp_path / "of mine")

    assert run.returncode == 0, run.stderr
    folder = tmp_path / "of mine"
    assert sorted(path.name for path in folder.iterdir()) == ["ps2w.yaml", "tfdist.schema.json"]
    assert run.stdout.splitlines()[-1] == f"    cd '{folder}' && tfdist train --config ps2w.yaml"
    assert "\n#     python -m tfdist.train --config ps2w.yaml\n" in (folder / "ps2w.yaml").read_text()
    assert read_config(folder / "ps2w.yaml").config == read_config(ROOT / "configs/ps2w.yaml").config


def test_a_copy_brings_the_model_that_it_names(tmp_path):
    written = copy_config("cifar10-fast", tmp_path)

    assert tmp_path / "examples/fast_resnet.py" in written
    assert all(path.is_file() for path in written)


def test_the_command_for_a_copy_in_the_current_folder_changes_no_folder(tmp_path):
    run = tfdist("configs", "cifar10-fast", cwd=tmp_path)

    assert run.stdout.splitlines()[-1] == "    tfdist train --config cifar10-fast.yaml"


def test_a_file_that_is_there_is_kept(tmp_path):
    mine = tmp_path / "ps2w.yaml"
    mine.write_text("my own")
    with pytest.raises(ConfigError, match=r"ps2w.yaml: exists already. Name another folder with --output"):
        copy_config("ps2w", tmp_path)

    assert (mine.read_text(), len(list(tmp_path.iterdir()))) == ("my own", 1)
    mine.unlink()
    assert copy_config("ps2w", tmp_path) == copy_config("ps2w", tmp_path)  # which are the same


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["ps2"], "tfdist: config ps2: is unknown. Did you mean 'ps2w'?"),
        (["a", "b"], "tfdist: command line: expected one name, received 2"),
    ],
)
def test_a_mistake_is_one_line(words, line):
    run = tfdist("configs", *words)

    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.strip() == line


def test_a_config_that_is_not_there_is_offered(tmp_path):
    with pytest.raises(
        ConfigError, match=r"ps2w.yaml: does not exist. tfdist configs ps2w writes one of that name"
    ):
        read_config(tmp_path / "ps2w.yaml")


def test_a_sentence_ends_before_the_command(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("# schema\n#\n# A config of\n# two lines:\n#\n#     python -m tfdist.train\nx: 1\n")

    assert describe_config(path) == "A config of two lines"


@pytest.mark.slow
def test_a_wheel_has_them(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, ROOT]
    subprocess.run(build, check=True)
    [wheel] = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())

    for name in shipped_configs():
        assert f"tfdist/shipped/configs/{name}.yaml" in names
    assert {"tfdist/shipped/configs/tfdist.schema.json", "tfdist/shipped/examples/fast_resnet.py"} <= names
    assert "tfdist/shipped/examples/simulate/inception.yaml" in names
    assert "tfdist/py.typed" in names
