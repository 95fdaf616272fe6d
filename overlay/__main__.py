"""`python -m overlay` runs the `overlay` command."""

from .cli import main

main()
