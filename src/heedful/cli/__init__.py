"""Floor 6: the command `heedful`. Each subcommand is a module, imported when it is called."""

from heedful.cli.main import main

__all__ = ["main"]
