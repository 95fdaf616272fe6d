"""`python -m overlay` is the `overlay` command."""

from overlay.cli import main

main()
