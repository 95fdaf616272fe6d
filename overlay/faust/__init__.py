"""The overlay's consumers in Faust applications (docs/faust.md).

`agent_topic` gives a Faust topic whose events are a consumer's messages. It needs the extra `fleet`,
which installs Faust; no other room imports this one. `topic.py` is the topic, `message.py` what
agents get, `tracking.py` notices what Faust acknowledges, `acknowledger.py` sends the acks,
`batches.py` has a `take` that loses nothing, and `committed.py` has Faust read committed deliveries
only.
"""

from .message import AgentMessage
from .topic import AgentTopic, agent_topic

__all__ = ["AgentMessage", "AgentTopic", "agent_topic"]
