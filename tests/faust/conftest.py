"""Fixtures of the tests of Faust applications."""

from tests.support.service import running_service as running_service
from tests.worker.scenes import scene as scene
