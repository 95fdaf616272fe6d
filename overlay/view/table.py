"""Tables and sheets of facts: drawn on a terminal, plain and uncut lines in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from overlay.config.spelling import list_settings

from .acks import list_ack_rows, show_dead_letters, show_gate, show_pending
from .facts import ConsumerFacts, IndexFacts, LedgerFacts, OverlayFacts, PartitionFacts, StreamFacts
from .figures import UNKNOWN, show_bytes, show_count, show_rate, show_seconds
from .listing import Listing

if TYPE_CHECKING:
    from overlay.client.control.consumer_info import ConsumerInfo

_STYLES = {
    "running": "green",
    "catching up": "cyan",
    "paused": "yellow",
    "parked": "yellow",
    "waiting": "yellow",
    "stopped": "bold red",
    "stalled": "bold red",
    "removed": "yellow",
    "elsewhere": "dim",
    "spark": "dim",
}


def print_listing(console: Console, listing: Listing) -> None:
    """Print the output of `overlay stream ls` or `overlay consumer ls`."""
    table = make_table(console, *listing.left, right=listing.right)
    for row in listing.rows:
        words, numbers = row[: len(listing.left)], row[len(listing.left) :]
        named = zip(listing.left, words, strict=True)
        table.add_row(*(_state(word) if name == "state" else Text(word) for name, word in named), *numbers)
    _print(console, table, listing.remarks)


def print_stream(console: Console, facts: OverlayFacts, found: StreamFacts) -> None:
    """Print the output of `overlay stream info`."""
    sheet = make_sheet(
        ("stream", found.name),
        ("state", found.state),
        ("reason", found.reason),
        ("topics", ", ".join(found.topics)),
        ("subjects", ", ".join(found.subjects)),
        ("consumers", ", ".join(found.consumers)),
        ("records/s", show_rate(found.rate)),
        ("decoded", f"{show_count(found.decoded)} since the service started" if found.decoded is not None else ""),
        ("read again", f"{show_count(found.read_again)}, for consumers that catch up" if found.read_again else ""),
        ("no subject", show_unaddressed(found)),
        ("index", show_index(found.index) if found.index else ""),
        ("ledger", show_ledger(found.index.ledger) if found.index else ""),
    )
    index = found.index or IndexFacts()
    right = ("position", "end", "behind", *(("chunks", "indexed to", "not indexed") if index.partitions else ()))
    table = make_table(console, "partition", right=right)
    for name in sorted({*found.partitions, *index.partitions}):
        part = found.partitions.get(name, PartitionFacts())
        cells = [part.position, part.end, part.behind]
        if index.partitions:
            kept = index.partitions.get(name)
            cells += [kept.chunks, kept.position, kept.behind] if kept else [None] * 3
        table.add_row(Text(name), *map(show_count, cells))
    has_rows = bool(found.partitions or index.partitions)
    _print(console, Group(sheet, Text(), table) if has_rows else sheet, facts.notes)


def print_consumer(console: Console, facts: OverlayFacts, found: ConsumerFacts) -> None:
    """Print the output of `overlay consumer info`."""
    sheet = make_sheet(
        ("consumer", f"{found.stream}/{found.name}"),
        ("state", found.state),
        ("reason", found.reason),
        ("output", found.deliver_subject),
        ("subjects", ", ".join(found.filters) or ("" if found.state == "removed" else "all")),
        ("SQL", (found.config.filter.sql or "") if found.config is not None else ""),
        ("sequence", show_count(found.consumer_sequence)),
        ("records/s", show_rate(found.rate)),
        (
            "delivered",
            f"{show_count(found.delivered)} since the service started" if found.delivered is not None else "",
        ),
        ("lag", f"{show_count(found.lag_records)} offsets" if found.lag_records is not None else UNKNOWN),
        ("lag time", show_seconds(found.lag_seconds)),
        ("to come", show_pending(found)),
        *list_ack_rows(found.acks),
        ("dead letters", show_dead_letters(found)),
    )
    parts: list[RenderableType] = [sheet]
    if found.config is not None:
        settings = make_table(console, "setting", "value", right=())
        for name, value in list_settings(found.config):
            settings.add_row(Text(name), Text(value))
        parts += [Text(), settings]
    if found.positions:
        stream = facts.streams.get(found.stream)
        table = make_table(console, "partition", right=("position", "end"))
        for name, position in sorted(found.positions.items()):
            part = stream.partitions.get(name) if stream else None
            table.add_row(Text(name), show_count(position), show_count(part.end if part else None))
        parts += [Text(), table]
    _print(console, Group(*parts), facts.notes)


def show_unaddressed(found: StreamFacts) -> str:
    """Return how many records have no subject: of the whole chunk index, and where the last one is; of those that the
    service has read since it started, why, and where one is. "" if there are none or none are known.
    """
    parts = [_show_unaddressed_chunks(found.index)] if found.index is not None else []
    if total := sum(found.unaddressed.values()):
        each = sorted(found.unaddressed.items())
        reasons = ", ".join(f"{reason} {show_count(count)}" for reason, count in each if count)
        what = f"{show_count(total)} record{'' if total == 1 else 's'} left out since the service started"
        parts.append(f"{what} ({reasons}), such as {found.unaddressed_at}")
    return "; ".join(part for part in parts if part)


def _show_unaddressed_chunks(index: IndexFacts) -> str:
    parts = index.partitions
    if not (total := sum(part.unaddressed or 0 for part in parts.values())):
        return ""
    records = sum(part.records or 0 for part in parts.values())
    name, (first, after) = next(
        (name, part.unaddressed_in) for name, part in sorted(parts.items()) if part.unaddressed_in
    )
    where = f"such as one in {name} between offsets {first} and {after - 1}"
    return f"{show_count(total)} of {show_count(records)} indexed records, {where}"


def show_index(found: IndexFacts) -> str:
    """Return `1,234 chunks, 12 k/s, 3 min left`, or why there is no index, or why it is not kept up
    to date.
    """
    if found.reason:
        return found.reason
    parts = [f"{show_count(found.chunks)} chunk{'' if found.chunks == 1 else 's'}"]
    parts += [show_rate(found.rate)] if found.rate is not None else []
    parts += [f"{show_seconds(found.remaining_seconds)} left"] if found.remaining_seconds else []
    return ", ".join(parts)


def show_ledger(found: LedgerFacts | None) -> str:
    """Return `sequences 1 to 4,711 in 12 runs`; "" if there is no ledger."""
    if found is None:
        return ""
    runs = f"{show_count(found.runs)} run{'' if found.runs == 1 else 's'}"
    return f"sequences {show_count(found.first_sequence)} to {show_count(found.last_sequence)} in {runs}"


def print_index(console: Console, name: str, found: IndexFacts) -> None:
    """Print the output of `overlay index status` for one stream."""
    size = f"{found.topic}, {show_bytes(found.bytes)}" if found.bytes else ""
    outdated = sum(part.outdated or 0 for part in found.partitions.values())
    sheet = make_sheet(
        ("stream", name),
        ("index", show_index(found)),
        ("topic", size),
        ("ledger", show_ledger(found.ledger)),
        ("passed over", f"{show_count(found.foreign)} records of another kind" if found.foreign else ""),
        ("older config", f"{show_count(outdated)} chunks, which are made anew" if outdated else ""),
    )
    table = make_table(console, "partition", right=("chunks", "from", "to", "end", "not indexed", "older config"))
    for part_name, part in sorted(found.partitions.items()):
        cells = (part.chunks, part.start, part.position, part.end, part.behind, part.outdated)
        table.add_row(Text(part_name), *map(show_count, cells))
    console.print(Group(sheet, Text(), table) if found.partitions else sheet)


def make_table(console: Console, *left: str, right: Iterable[str]) -> Table:
    """Return a table without rows; the columns `right` are for numbers."""
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, header_style="bold")
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def make_sheet(*rows: tuple[str, str]) -> Table:
    """Return a table of names and values, one pair a line; pairs with an empty value are left out."""
    sheet = Table.grid(padding=(0, 2))
    for name, value in rows:
        if value:
            sheet.add_row(Text(name, style="bold"), _state(value) if name == "state" else Text(value, overflow="fold"))
    return sheet


def _state(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, ""))


def _print(console: Console, body: RenderableType, remarks: Iterable[str]) -> None:
    console.print(body)
    for line in remarks:
        console.print(Text(line), soft_wrap=True)


def make_moves(console: Console, moves: Iterable[tuple[str, str, int | None, int]]) -> Table:
    """Return a table with a row for each move: a consumer, a partition, and the consumer's next
    offset there now (None if it has none) and afterwards.
    """
    table = make_table(console, "consumer", "partition", right=("now", "then"))
    for consumer, partition, now, then in moves:
        table.add_row(Text(consumer), Text(partition), show_count(now), show_count(then))
    return table


def print_ack_report(console: Console, found: Sequence[ConsumerInfo]) -> None:
    """Print the output of `overlay consumer report`: pending acks, redelivered messages, dead letters, and what holds
    back new messages."""
    right = ("delivered", "unacked", "delayed", "redelivered", "dead letters", "to come", "pulls")
    table = make_table(console, "stream", "consumer", "state", "held back by", right=right)
    for info in found:
        own = info.raw.get("overlay", {})
        table.add_row(
            Text(info.stream),
            Text(info.name),
            Text("paused" if info.paused else info.state),
            Text(show_gate(own.get("gate", ""), is_paused=info.paused)),
            show_count(info.delivered.consumer_seq),
            show_count(info.num_ack_pending),
            show_count(own.get("num_delayed", 0)),
            show_count(info.num_redelivered),
            show_count(_sum_dead_letters(info)),
            UNKNOWN if info.num_pending is None else show_count(info.num_pending),
            show_count(info.num_waiting),
        )
    console.print(table)


def _sum_dead_letters(info: ConsumerInfo) -> int | None:
    """Return how many dead letters a consumer has since its worker started. None if it has no topic for them, or if the
    service does not say or does not count them, as for consumers of Spark jobs.
    """
    counts = info.raw.get("overlay", {}).get("dead_letters")
    is_known = counts is not None and info.config.dead_letter is not None and info.state not in ("spark", "elsewhere")
    return sum(counts.values()) if is_known else None
