"""Hide what the names of options, variables, keys and parameters say is a secret, before it is recorded."""

import re
from collections.abc import Iterable
from typing import Any

_HIDDEN = "***"
# The end of the name of an option or a variable: --hf_token, WANDB_API_KEY, --db.password.
_ENDS = (
    r"(?:password|passwd|passphrase|pwd|secret|token|credentials?|authorization"
    r"|(?:api|access|private|secret|auth)[-_]?key)"
)
_NAME = re.compile(rf"-+(?:[\w.-]*[._-])?{_ENDS}", re.IGNORECASE)
_ASSIGNED = re.compile(rf"(?P<name>-*(?:[\w.=-]*[._=-])?{_ENDS}=).+", re.IGNORECASE | re.DOTALL)
# Within a longer word, as in `--sbatch export=ALL,HF_TOKEN=…` or `bash -c 'export TOKEN=…; …'`.
_WITHIN = re.compile(
    rf"(?P<name>(?<![\w.-])(?:[\w.-]*[._-])?{_ENDS}=)(?:\"[^\"]*\"|'[^']*'|\\.|[^\s,;&'\"\\])+", re.IGNORECASE
)
_USER = re.compile(r"(?P<scheme>\w://)[^/@\s]+@")  # of an address, with a password or as one
_KEY = re.compile(rf"(?:[\w.-]*[._-])?{_ENDS}", re.IGNORECASE)
_PARAMETER = re.compile(
    rf"(?P<name>[?&](?:(?:[\w.-]*[._-])?(?:{_ENDS}|signature)|sig)=)[^&#\s]+", re.IGNORECASE
)
# In a header or a mapping, with all that follows: `Authorization: Bearer …`, `{api_key: …}`, `{"token":"…"}`.
# Without a space only after names such as headers have, `X-Api-Key:…`: a job may be `secret:2`.
_HEADER = r"(?=[\w.]*-|authorization:|apikey:)"
_ENTRY = re.compile(
    rf"(?P<name>(?<![\w.-])(?:(?:[\w.-]*[._-])?{_ENDS}(?:\s*:\s+|[\"']\s*:\s*)"
    rf"|{_HEADER}(?:[\w.-]*[._-])?{_ENDS}:)|\bBearer\s+)\S.*",
    re.IGNORECASE | re.DOTALL,
)


def without_secrets(words: Iterable[str]) -> list[str]:
    """Return the words of a command with *** in place of what their names or their form say is a secret."""
    shown: list[str] = []
    is_value = False
    for word in words:
        if is_value and not word.startswith("--"):
            shown.append(_HIDDEN)
        else:
            visible = _ASSIGNED.sub(rf"\g<name>{_HIDDEN}", word) if _ASSIGNED.fullmatch(word) else word
            shown.append(_of_text(visible))
        is_value = _NAME.fullmatch(word) is not None
    return shown


def values_without_secrets(value: Any, name: str = "") -> Any:
    """Return the values of a config, nested as they are, with *** in place of secrets.

    A number is no token: `pad_token: 5` is an option of a model.
    """
    if isinstance(value, dict):
        return {key: values_without_secrets(part, str(key)) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [values_without_secrets(part, name) for part in value]
    is_named = _KEY.fullmatch(name) is not None
    if isinstance(value, str):
        return _HIDDEN if value and is_named else _of_text(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return _HIDDEN if is_number and is_named and not name.lower().endswith("token") else value


def _of_text(text: str) -> str:
    text = _PARAMETER.sub(rf"\g<name>{_HIDDEN}", _USER.sub(rf"\g<scheme>{_HIDDEN}@", text))
    return _ENTRY.sub(rf"\g<name>{_HIDDEN}", _WITHIN.sub(rf"\g<name>{_HIDDEN}", text))
