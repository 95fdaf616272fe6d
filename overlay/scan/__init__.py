"""Step 2: the bytes of a fetch become columns of positions, then Arrow columns.

    decoder = Decoder(make_plan([Field(FieldKind.HEADER, "origin")]))
    # buf: uint8 array, one partition's part of a fetch response
    for piece in decoder.decode(buf, position, aborted=...):
        match piece:
            case Records(): ...      # positions into piece.buf, valid until the next piece
            case Malformed(): ...    # fault.text, base_offset, next_offset

Pure: no clock, no Kafka client, no threads. Nothing raises on bad bytes.
"""

from .decode import Decoder, Malformed, Records
from .header import Fault
from .plan import Plan, make_plan
from .states import MALFORMED, MISSING, UNDECODED
from .values import DeclaredFormat, Encoding

__all__ = [
    "MALFORMED",
    "MISSING",
    "UNDECODED",
    "DeclaredFormat",
    "Decoder",
    "Encoding",
    "Fault",
    "Malformed",
    "Plan",
    "Records",
    "make_plan",
]
