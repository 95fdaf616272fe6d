"""`python -m overlay` is the `overlay` command."""

from .cli import main

main()
