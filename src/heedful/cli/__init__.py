"""Floor 6: the command `heedful`. Each subcommand's module is imported only when needed."""

import sys

try:
    from heedful.cli.main import main
except KeyboardInterrupt:  # Ctrl-C during the import, before `main` can catch it
    print("heedful: interrupted", file=sys.stderr)
    raise SystemExit(130) from None

__all__ = ["main"]
