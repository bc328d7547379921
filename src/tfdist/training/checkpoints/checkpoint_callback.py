"""Define CheckpointAndResume, which asks `fit` for checkpoints and for resuming from them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist._utils.check_and_expand_paths import local_path
from tfdist.errors import ConfigError, shown


class CheckpointAndResume:
    """A callback with which `tfdist.fit` writes checkpoints, and resumes from the newest one.

    A run that was killed continues, when the same script starts again, after the step of its last checkpoint:
    in the middle of an epoch, with the batches that would have come next. After SIGTERM all tasks agree on a
    step, save and end with exit status 138.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: int | None = None,
        *,
        keep: int = 3,
        background: bool = False,
    ) -> None:
        """Choose where and when to write.

        Args:
            folder: The folder of this call of `fit`, on a disk of the chief.
            every: The number of steps between checkpoints; None for one at the end of each epoch.
            keep: How many checkpoints stay.
            background: Whether training continues while a checkpoint is written. A kill within that time
                costs the steps since the one before.

        Raises:
            ConfigError: An argument has a wrong value.
        """
        for name, value in (("every", every), ("keep", keep)):
            is_whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
            if not is_whole and not (name == "every" and value is None):
                raise ConfigError(
                    f"CheckpointAndResume, {name}", expected="a number of at least 1", received=shown(value)
                )
        if not isinstance(background, bool):
            where, received = "CheckpointAndResume, background", shown(background)
            raise ConfigError(where, expected="True or False", received=received)
        if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
            raise ConfigError("CheckpointAndResume", expected="a folder", received=shown(folder))
        self.folder: Path = local_path(str(os.fspath(folder)), "CheckpointAndResume")
        self.every, self.keep, self.background = every, keep, background

    def set_params(self, params: Any) -> None:
        """Refuse to be called by anything but `tfdist.fit`, which never calls this."""
        del params
        problem = "works in tfdist.fit only, and in model.fit after tfdist.start()"
        raise ConfigError("CheckpointAndResume", problem, remedy="Call one of these, or leave it out")

    def set_model(self, model: Any) -> None:
        """Refuse a model, as `set_params` does."""
        self.set_params(model)


def apart(callbacks: Sequence[Any]) -> tuple[list[Any], CheckpointAndResume | None]:
    """Return the callbacks without CheckpointAndResume, and that one if it is among them."""
    found = [callback for callback in callbacks if isinstance(callback, CheckpointAndResume)]
    if len(found) > 1:
        raise ConfigError("callbacks", "contains CheckpointAndResume twice", remedy="Leave one out")
    others = [callback for callback in callbacks if not isinstance(callback, CheckpointAndResume)]
    return others, found[0] if found else None
