"""The command `wayfare`, also as ``python -m wayfare``."""

from __future__ import annotations

import logging
import sys

from wayfare.cli.words import reworded

# Worker processes import this file too: what they log names commands as well.
logging.getLogger("wayfare").addFilter(reworded)


def main() -> None:
    """Run a command; an interrupt that comes while its parts are still being imported ends it like any other."""
    try:
        from wayfare.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
