"""The format of a stream's values, for the scan, from what the stream's file declares."""

from __future__ import annotations

from overlay.config.values import ValueFormat, ValuesConfig
from overlay.scan.avro.reader import AvroFormat
from overlay.scan.protobuf.reader import ProtobufFormat
from overlay.scan.values import DeclaredFormat

from .growing import GrowingFormat


def make_format(values: ValuesConfig) -> DeclaredFormat | None:
    """Return the decoder of a stream's values, None for JSON. The schemas in `values` must have
    been checked, as they are when the config is loaded.
    """
    if values.book is not None:
        return GrowingFormat(values.format, values.book)
    match values.format:
        case ValueFormat.JSON:
            return None
        case ValueFormat.AVRO:
            return AvroFormat(values.types, is_framed=values.is_framed)
        case ValueFormat.PROTOBUF:
            return ProtobufFormat(values.messages, is_framed=values.is_framed)
