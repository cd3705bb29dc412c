"""What a job may raise: errors, what is no `Exception`, and what an event loop passes to nobody."""


class Panic(BaseException):
    """As tokenizers raises where its Rust panics."""


ENDS = (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration)
RAISED = [kind("by\nzero") for kind in (ZeroDivisionError, Panic, *ENDS)]
