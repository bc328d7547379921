"""List the configs that come with tfdist, or copy one for you to change.

tfdist configs
tfdist configs ps2w [--output FOLDER]
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tfdist._utils.check_and_expand_paths import local_path
from tfdist._utils.readable_text import beside
from tfdist.cli._flags_from_signature import Flag, run
from tfdist.errors import ConfigError
from tfdist.trainer.shipped_configs import copy_config, describe_config, shipped_configs


def main(
    command: Sequence[str], output: Annotated[str, Flag("The folder to write to.", short_name="o")] = "."
) -> None:
    """Print the names, or write the config that the command line names."""
    if len(command) > 1:
        raise ConfigError("command line", expected="one name", received=str(len(command)))
    if command:
        config, *others = copy_config(command[0], local_path(output, "--output"))
        print(f"wrote {', '.join(map(str, [config, *others]))}")
        # In its folder, where the modules are that it names.
        folder = "" if config.parent == Path() else f"cd {shlex.quote(str(config.parent))} && "
        print(f"    {folder}tfdist train --config {config.name}")
        return
    configs = shipped_configs()
    width = max(map(len, configs), default=0)
    for name, path in configs.items():
        print(beside(f"{name:<{width}}  ", describe_config(path)))


if __name__ == "__main__":
    run(main, takes_words=True)
