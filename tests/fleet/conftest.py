"""Fixtures of the tests of the fleet."""

from tests.cli.conftest import quiet_logs as quiet_logs
from tests.support.service import running_service as running_service
