"""``python -m danlu``."""

from danlu.cli import main

if __name__ == "__main__":
    main()
