"""Atomic file writes, checksums that detect damage, and the identity of runs.

`atomic.py` writes a temporary file and renames it; `json_files.py` and `tensor_files.py` use it.
`checksums.py` detects damaged files. `run_identity.py` detects files of another run.
"""

from heedful.files.atomic import (
    atomic_write,
    check_free,
    check_no_links,
    directory_lock,
    make_directory,
    read_error,
    save_errors,
    temporary_file,
)
from heedful.files.checksums import Checksums, checksum_of
from heedful.files.json_files import read_checked_json, read_json, write_checked_json, write_json
from heedful.files.small_files import check_regular, parse_json, read_small
from heedful.files.tensor_files import (
    check_replaceable,
    description,
    is_header_intact,
    load_tensors,
    read_tensors,
    save_tensors,
)
