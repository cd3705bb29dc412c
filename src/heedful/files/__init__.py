"""Floor 0: files that are whole or not there, and that say when they are not what was written.

`atomic.py` writes beside and renames, `json_files.py` and `tensor_files.py` are what is written so,
`checksums.py` is how a damaged file is known, `run_identity.py` how one of another run is.
"""

from heedful.files.atomic import (
    alone,
    beside,
    check_free,
    check_no_links,
    damaged,
    make_directory,
    replacing,
    saving,
)
from heedful.files.checksums import Checksums, checksum_of
from heedful.files.json_files import read_checked_json, read_json, write_checked_json, write_json
from heedful.files.tensor_files import (
    check_replaceable,
    description,
    is_header_whole,
    load_tensors,
    read_tensors,
    save_tensors,
)
