"""Bring engines up on this machine, each once for all tests that need it."""

import pytest
from slurm_site import slurm_site, why_no_slurm


@pytest.fixture(scope="session")
def slurm():
    """Return a Slurm cluster of three nodes."""
    if reason := why_no_slurm():
        pytest.skip(reason)
    with slurm_site() as site:
        yield site
