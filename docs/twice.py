"""Writes a text that repeats each line, by running the code block of docs/how-to/watch.md.

python docs/twice.py build/pictures
"""

import os
import re
import sys
from pathlib import Path

PAGE = Path(__file__).parent / "how-to" / "watch.md"

if __name__ == "__main__":
    block = re.search(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    os.chdir(sys.argv[1])
    exec(compile(block[1], PAGE.name, "exec"))
