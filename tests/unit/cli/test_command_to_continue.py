"""`tfdist train` prints the command that continues a run which was stopped in a folder that it has chosen."""

from pathlib import Path

import pytest

from tfdist.cli import train
from tfdist.errors import ConfigError, TaskLost
from tfdist.trainer.run_folder import RunFolder

COMMAND = (
    "tfdist: to continue this run: tfdist train --config x.yaml '--set=model.options={width: 3}' --smoke "
    "--run_dir runs/x-20260101-120000\n"
)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (TaskLost("x", "y"), COMMAND),
        (KeyboardInterrupt(), COMMAND),
        (ConfigError("x", "y"), ""),
    ],
)
def test_a_stopped_run_tells_the_command_that_continues_it(capsys, error, shown):
    folder = RunFolder.at(Path("runs/x-20260101-120000"))
    changes = ["model.options={width: 3}"]
    with (
        pytest.raises(type(error)),
        train._command_to_continue_shown("x.yaml", changes, smoke=True, folder=folder),
    ):
        raise error
    assert capsys.readouterr().err == shown
