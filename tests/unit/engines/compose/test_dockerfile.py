"""The Dockerfile that tfdist writes."""

import platform
import re
from importlib.metadata import PackageNotFoundError, version

import pytest

import tfdist
from tfdist.engines.compose import dockerfile
from tfdist.engines.compose.dockerfile import render_dockerfile
from tfdist.errors import ConfigError
from tfdist.trainer.sections.engine import DockerfileSection


def packages(text):
    return dict(re.findall(r"'([^'=]+)(?:==)?([^']*)'", text))


def test_it_pins_every_package_and_is_not_root():
    text = render_dockerfile(DockerfileSection(), "tfdist render dockerfile")
    assert text.startswith(
        "# Made by: tfdist render dockerfile\n# Build it with: docker build --tag tfdist - < FILE\n"
    )
    assert f"BASE=python:{platform.python_version()}-slim-bookworm\n" in text
    pinned = packages(text)
    assert pinned["tfdist"] == tfdist.__version__
    assert pinned["tensorflow"] == version("tensorflow")
    assert {"numpy", "keras", "msgspec", "pyyaml", "tensorflow-datasets"} < pinned.keys()
    assert all(pinned.values())
    assert "fsspec" in pinned  # of an extra that tensorflow-datasets asks for: etils[epath]
    assert "pytest" not in pinned  # of an extra that nobody asks for
    assert re.findall(r"^(USER|FROM) .*", text, re.MULTILINE) == ["FROM", "FROM", "USER"]


def test_an_extra_that_the_tasks_need_is_installed(monkeypatch):
    assert "cryptography" not in packages(render_dockerfile(DockerfileSection(), "x"))
    assert packages(render_dockerfile(DockerfileSection(), "x", ["tls"]))["cryptography"]

    def version_without(name):
        if name == "cryptography":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(dockerfile, "version", version_without)
    assert packages(render_dockerfile(DockerfileSection(), "x", ["tls"]))["cryptography"] == ""


def test_packages_of_other_systems_are_left_out(monkeypatch):
    needs = {"tfdist": ["on-mac; platform_system == 'Darwin'", "On.Linux; sys_platform == 'linux'"]}
    monkeypatch.setattr(dockerfile, "requires", needs.get)
    monkeypatch.setattr(dockerfile, "version", lambda _: "1")
    pinned = packages(render_dockerfile(DockerfileSection(), "x"))
    assert pinned == {"tfdist": tfdist.__version__, "on-linux": "1"}


def test_a_requirement_that_is_malformed_is_left_to_pip(monkeypatch):
    needs = {"tfdist": ["old (>=1.0.*dev)", "new"]}
    monkeypatch.setattr(dockerfile, "requires", needs.get)
    monkeypatch.setattr(dockerfile, "version", lambda _: "1")
    assert packages(render_dockerfile(DockerfileSection(), "x")) == {"tfdist": tfdist.__version__, "new": "1"}


def test_packages_that_the_user_chooses_come_in_place_of_ours():
    section = DockerfileSection(packages=["tensorflow[and-cuda]==2.20.0"], copy=["src", "x/train.py"])
    text = render_dockerfile(section, "x")
    assert "'tensorflow==" not in text
    assert "'tensorflow[and-cuda]==2.20.0'" in text
    assert 'COPY ["src", "/app/src"]\nCOPY ["x/train.py", "/app/train.py"]\n' in text
    assert "docker build --tag tfdist --file FILE ." in text


def test_a_wheel_is_installed_from_the_folder_of_the_dockerfile():
    text = render_dockerfile(DockerfileSection(tfdist="dist/tfdist-1-py3-none-any.whl"), "x")
    first, _ = text.split("FROM ${BASE}\n")
    assert 'COPY ["dist/tfdist-1-py3-none-any.whl", "/tmp/"]\n' in first
    assert "'/tmp/tfdist-1-py3-none-any.whl' \\\n" in first


@pytest.mark.parametrize(
    "section",
    [
        DockerfileSection(packages=["x'; rm"]),
        DockerfileSection(base="a\nRUN b"),
        DockerfileSection(packages=["==1"]),
    ],
)
def test_what_breaks_the_file_is_refused(section):
    with pytest.raises(ConfigError, match=r"engine\.dockerfile: expected "):
        render_dockerfile(section, "x")
