"""Put the options of the command line into a section of the config."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from tfdist._utils.yaml import Document, Source, decode, read_yaml
from tfdist.errors import ConfigError

__all__ = ["Key", "with_options"]

Key = str | tuple[str, ...]
Section = TypeVar("Section", bound=msgspec.Struct)


def with_options(section: Section, options: Mapping[str, str] | Mapping[Key, str]) -> Section:
    """Return a section of the config with the values of options in place of its own.

    Args:
        section: The section.
        options: The value of each key, written as in YAML. A key is a path, or a text with dots, such as
            `resources.worker.gpus`.

    Raises:
        ConfigError: The section has no such key, or the value has another type.
    """
    document = Document(msgspec.to_builtins(section), Source("--option"))
    for key, text in options.items():
        name = key if isinstance(key, str) else ".".join(key)
        document = _with_option(document, key, text, f"--option {name}={text}", type(section))
    return decode(document, type(section))


def _with_option(document: Document, key: Key, text: str, place: str, kind: type) -> Document:
    changed = document.with_value(key, _value(text), place)
    try:
        decode(changed, kind)
    except ConfigError:
        as_text = document.with_value(key, text, place)  # such as a tag 1.0, which YAML reads as a number
        try:
            decode(as_text, kind)
        except ConfigError:
            return changed
        return as_text
    return changed


def _value(text: str) -> Any:
    """Return the value that a text is in YAML; what is no value there is the text itself."""
    try:
        values = read_yaml(f"value: {text}".encode("utf-8", "surrogateescape"), "--option").value
    except ConfigError:
        return text
    return values["value"] if text.strip() and set(values) == {"value"} else text
