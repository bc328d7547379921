"""Hide passwords and the like in the words of a command before they are recorded."""

import re
from collections.abc import Iterable

__all__ = ["without_secrets"]

_HIDDEN = "***"
# The end of the name of an option or a variable: --hf_token, WANDB_API_KEY, --db.password.
_ENDS = (
    r"(?:password|passwd|passphrase|pwd|secret|token|credentials?|(?:api|access|private|secret|auth)[-_]?key)"
)
_NAME = re.compile(rf"-+(?:[\w.-]*[._-])?{_ENDS}", re.IGNORECASE)
_ASSIGNED = re.compile(rf"(?P<name>-*(?:[\w.=-]*[._=-])?{_ENDS}=).+", re.IGNORECASE | re.DOTALL)
_USER = re.compile(r"(?P<scheme>\w://)[^/@\s]+@")  # of an address, with a password or as one


def without_secrets(words: Iterable[str]) -> list[str]:
    """Return the words of a command with *** in place of what their names or their form say is a secret."""
    shown: list[str] = []
    is_value = False
    for word in words:
        if is_value and not word.startswith("--"):
            shown.append(_HIDDEN)
        else:
            visible = _ASSIGNED.sub(rf"\g<name>{_HIDDEN}", word) if _ASSIGNED.fullmatch(word) else word
            shown.append(_USER.sub(rf"\g<scheme>{_HIDDEN}@", visible))
        is_value = _NAME.fullmatch(word) is not None
    return shown
