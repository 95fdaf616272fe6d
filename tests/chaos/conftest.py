from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, run_cluster
from tests.support.service import running_service as running_service
from tests.worker.scenes import scene as scene


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers. The test that kills one starts it again."""
    with run_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
