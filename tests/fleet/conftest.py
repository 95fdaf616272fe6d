"""Fixtures of the tests of the fleet."""

from tests.support.service import running_service as running_service
