"""Fixtures of the tests of Faust applications."""

from tests.cli.conftest import quiet_logs as quiet_logs
from tests.support.service import running_service as running_service
from tests.worker.scenes import scene as scene
