from __future__ import annotations

from tests.support.service import running_service as running_service
from tests.worker.scenes import ack_clock as ack_clock
from tests.worker.scenes import scene as scene
