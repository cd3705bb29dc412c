"""Entry point of `python -m heedful` and `torchrun -m heedful`."""

from heedful.cli.main import main

if __name__ == "__main__":
    main()
