"""Put the options of the command line into a section of the config."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

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
            `resources.worker.gpus`. What follows a mapping of names to values is one name, such as
            `cloud.google.com/gke-accelerator` in `node_selector`.

    Raises:
        ConfigError: The section has no such key, or the value has another type.
    """
    document = Document(msgspec.to_builtins(section), Source("--option"))
    kind = inspect.type_info(type(section))
    for key, text in options.items():
        name = key if isinstance(key, str) else ".".join(key)
        key = _path(key, kind) if isinstance(key, str) else key
        document = _with_option(document, key, text, f"--option {name}={text}", type(section))
    return decode(document, type(section))


def _path(text: str, kind: inspect.Type) -> tuple[str, ...]:
    """Return the path that a text with dots is in a section, or in a mapping."""
    first, dot, rest = text.partition(".")
    match kind:
        case inspect.Metadata(inner):
            return _path(text, inner)
        case inspect.UnionType(types):
            mapping = next((one for one in types if isinstance(one, inspect.DictType)), inspect.AnyType())
            return _path(text, mapping)
        case inspect.DictType(
            value_type=inspect.StrType() | inspect.IntType() | inspect.FloatType() | inspect.UnionType()
        ):
            return (text,)
        case inspect.DictType():
            below: inspect.Type = kind.value_type
        case inspect.StructType():
            below = next((field.type for field in kind.fields if field.name == first), inspect.AnyType())
        case _:
            return tuple(text.split("."))
    return (first, *_path(rest, below)) if dot else (text,)


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
