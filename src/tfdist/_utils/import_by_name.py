"""Import what a user names as `my_pkg.my_module:name`."""

import importlib
import inspect
import sys
from typing import Any

from tfdist.errors import ConfigError, did_you_mean


def import_object(name: str, place: str) -> Any:
    """Import the object that a name such as `my_pkg.my_module:build` stands for.

    Args:
        name: The module and the object in it.
        place: The place of the name, for messages.

    Raises:
        ConfigError: The module cannot be imported, or has no such object.
    """
    module_name, _, attribute = name.partition(":")
    where = f"{place} {name}"
    if "" not in sys.path:  # the folder that one works in, which `python -m` searches and a script does not
        sys.path.append("")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError, ValueError) as error:
        remedy = "Run in its folder, or add the folder to PYTHONPATH"
        raise ConfigError(where, f"cannot be imported: {error}", remedy=remedy) from error
    found = getattr(module, attribute, None)
    if found is None:
        known = [
            key for key, value in vars(module).items() if inspect.isfunction(value) or inspect.isclass(value)
        ]
        remedy = did_you_mean(attribute, known) if known else ""
        raise ConfigError(where, f"{module_name} has no '{attribute}'", remedy=remedy)
    return found
