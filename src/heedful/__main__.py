"""`python -m heedful`, which is what `torchrun -m heedful` calls."""

from heedful.cli.main import main

if __name__ == "__main__":
    main()
