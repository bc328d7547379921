"""Mark tests that do once more, in another way, what others prove: they run before a release."""

from typing import Any

import pytest

__all__ = ["AGAIN", "again"]

AGAIN = [pytest.mark.slow, pytest.mark.again]


def again(*values: Any, id: str | None = None) -> Any:
    """Return the parameters of such a test."""
    return pytest.param(*values, marks=AGAIN, id=id)
