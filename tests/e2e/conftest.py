import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """Give a folder for prepared data that all tests share: the digits are drawn once."""
    return str(tmp_path_factory.mktemp("cache"))
