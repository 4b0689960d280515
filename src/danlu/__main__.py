"""``python -m danlu``."""

from danlu.cli import main

main()
