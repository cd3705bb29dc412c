"""Everything that a job may raise: errors, and exceptions that are not `Exception`s."""


class Panic(BaseException):
    """Like the exception that tokenizers raises if its Rust code panics."""


ENDS = (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration)
RAISED = [kind("by\nzero") for kind in (ZeroDivisionError, Panic, *ENDS)]
