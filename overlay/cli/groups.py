"""Groups of commands that know what a mistyped command was meant to be."""

from __future__ import annotations

from typing import Any

import click


class SuggestingGroup(click.Group):
    """A group that names the nearest of its commands where there is none of the name that was typed."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from overlay.config.suggestion import suggest

            raise click.UsageError(f"{error.message}{suggest(args[0], self.list_commands(ctx))}", ctx) from None
