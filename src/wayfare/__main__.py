"""The command `wayfare`, also as ``python -m wayfare``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run a command. An interrupt during the imports exits as quietly as a later one."""
    try:
        from wayfare.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
