"""Groups of commands that know what a mistyped command or option was meant to be."""

from __future__ import annotations

from typing import Any

import click


class SuggestingGroup(click.Group):
    """A group that names the nearest of its commands, and of a command's options, where there is none of the name that was
    typed."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from overlay.config.suggestion import suggest_name

            raise click.UsageError(f"{error.message}{suggest_name(args[0], self.list_commands(ctx))}", ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            raise _explain(error, error.ctx or ctx) from None


def _explain(error: click.NoSuchOption, ctx: click.Context) -> click.UsageError:
    """Return the error with the option that was meant, in place of those that click names."""
    from overlay.config.suggestion import suggest_name

    params = ctx.command.get_params(ctx)
    known = [name for each in params for name in (*each.opts, *each.secondary_opts) if name.startswith("--")]
    return click.UsageError(f"No such option: {error.option_name}.{suggest_name(error.option_name, known)}", ctx)
