"""Put the options of the command line into a section of the config; some are for the tasks of one role."""

import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from tfdist._utils.read_yaml_and_json import Document, Source, decode, read_yaml, types_below
from tfdist.errors import ConfigError, shown

OptionPath = str | tuple[str, ...]
Section = TypeVar("Section", bound=msgspec.Struct)
Value = TypeVar("Value")


def with_options(
    section: Section,
    options: Mapping[str, str],
    path_of: Callable[[str, str], OptionPath] | None = None,
    roles: Collection[str] = (),
) -> Section:
    """Return a section of the config with the values of options in place of its own.

    Args:
        section: The section.
        options: The value of each name, written as in YAML; that of a variable, such as `environment.NAME`,
            is the text itself. A name is a text with dots, such as `volume.size`. The rest after a mapping
            of names to values is one name, such as `cloud.google.com/gke-accelerator` in `node_selector`.
            `worker:NAME` is for that role alone.
        path_of: The path in the section of a role (empty for all) and a name; by default, the name itself.
        roles: The roles among which a value for all is divided when one of them gets its own.

    Raises:
        ConfigError: The section has no such key, or the value has another type.
    """
    document = Document(msgspec.to_builtins(section), Source("--option"))
    for name, text in options.items():
        match = re.fullmatch(r"([^.:]+):(.+)", name)
        path = path_of(*(match.groups() if match else ("", name))) if path_of else name
        path = _path(path, [type(section)]) if isinstance(path, str) else path
        if path[0] not in section.__struct_fields__:
            path = (name,)  # which the error names
        document = _divided(document, path, type(section), roles)
        document = _with_option(document, path, text, f"--option {name}={text}", type(section))
    return decode(document, type(section))


def by_role(
    values: Mapping[str, Value], roles: Collection[str], where: str
) -> tuple[dict[str, Value], dict[str, dict[str, Value]]]:
    """Return the values for all roles, and those of each role alone, whose names begin with `worker:`."""
    common: dict[str, Value] = {}
    own: dict[str, dict[str, Value]] = {role: {} for role in roles}
    for key, value in values.items():
        role, colon, name = key.rpartition(":")
        if colon and role not in own:
            expected = f"a role of the job ({', '.join(sorted(own))}) before the colon"
            raise ConfigError(where, expected=expected, received=shown(key))
        (own[role] if colon else common)[name] = value
    return common, own


def merged(value: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with more keys; mappings in both are merged, and other values replaced."""
    result = dict(value)
    for key, new in more.items():
        before = result.get(key)
        is_section = isinstance(before, Mapping) and isinstance(new, Mapping)
        result[key] = merged(before, new) if is_section else new  # type: ignore[arg-type]
    return result


def check_roles(named: Collection[str], roles: Collection[str], where: str) -> None:
    """Raise ConfigError if a section has a value for a role that the job lacks."""
    for role in named:
        if role not in roles:
            expected = f"roles of the job ({', '.join(sorted(roles))})"
            raise ConfigError(where, expected=expected, received=shown(role))


def _divided(document: Document, path: tuple[str, ...], kind: type, roles: Collection[str]) -> Document:
    """Return the document with a value for each role where there was one for all, if the path wants it."""
    value = document.value.get(path[0])
    kinds = types_below(kind, path[0])
    is_either = len(kinds) > 1 and any(map(_is_mapping, kinds))
    if len(path) == 1 or isinstance(value, dict) or not is_either:
        return document
    return document.with_value(path[:1], dict.fromkeys(roles, value) if value else {}, "")


def _is_mapping(kind: Any) -> bool:
    return typing.get_origin(kind) is dict


def _path(text: str, kinds: Sequence[Any]) -> tuple[str, ...]:
    """Return the path that a text with dots is in a value of one of these types."""
    first, dot, rest = text.partition(".")
    mapping = next(filter(_is_mapping, kinds), None)
    below = types_below(mapping or kinds[0], first) if mapping or len(kinds) == 1 else []
    if mapping and (len(below) > 1 or below[0] in (str, int, float)):
        return (text,)  # a name may have dots
    return (first, *_path(rest, below)) if dot else (text,)


def _with_option(document: Document, path: tuple[str, ...], text: str, place: str, kind: type) -> Document:
    if path[0] == "environment" and len(path) > 1:  # whose values are texts: 1.10 must not become 1.1
        return document.with_value(path, text, place)
    changed = document.with_value(path, _value(text), place)
    try:
        decode(changed, kind)
    except ConfigError:
        as_text = document.with_value(path, text, place)  # such as a tag 1.0, which YAML reads as a number
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
