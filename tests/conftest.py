"""What every test runs under: one thread, and Hypothesis with neither chance nor clock."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Read when torch and the BLAS libraries load, which is after this file; subprocesses inherit it.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

settings.register_profile(
    "specverify",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("specverify")


@pytest.fixture(autouse=True)
def own_session() -> Iterator[None]:
    """What a test has certified is not a result of the session that runs the test."""
    # Imported here, so that the variables above are set before anything loads.
    from specverify.session import Session, close_session, open_session

    session = Session()
    open_session(session)
    yield
    close_session(session)
