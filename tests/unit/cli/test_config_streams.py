"""A config that is a stream, such as `<(...)` of a shell: who reads it again, or passes its name on, refuses it."""

import inspect
import os

import pytest

from tfdist.cli import bench, doctor, plan, render, submit, train, verify
from tfdist.errors import ConfigError


@pytest.fixture
def stream():
    reading, writing = os.pipe()
    os.write(writing, b"cluster: {worker: 2}\n")
    os.close(writing)
    yield f"/dev/fd/{reading}"
    os.close(reading)


def call(command, *words, **flags):
    """Call the main of a command with the defaults of its other flags."""
    parameters = inspect.signature(command.main).parameters.values()
    defaults = {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.default is not parameter.empty
    }
    return command.main(*words, **{**defaults, **flags})


@pytest.mark.parametrize(
    ("command", "words"),
    [(train, []), (verify, []), (bench, []), (doctor, []), (submit, [["slurm"]]), (render, [["compose"]])],
)
def test_who_needs_it_again_refuses_it(command, words, stream, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"^--config {stream}: is a stream, which can be read only once"):
        call(command, *words, config=stream)
    assert os.listdir(tmp_path) == []


def test_who_reads_it_once_takes_it(stream, capsys):
    plan.main(config=stream)
    assert "2 tasks, from /dev/fd/" in capsys.readouterr().out
