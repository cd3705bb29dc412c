"""Floor 6: the command `heedful`. Each subcommand is a module, imported when it is called."""

import sys

try:
    from heedful.cli.main import main
except KeyboardInterrupt:  # Ctrl-C before `main` could look out for it
    print("heedful: interrupted", file=sys.stderr)
    raise SystemExit(130) from None

__all__ = ["main"]
