"""Shape annotations are checked while testing, and only then."""

from jaxtyping import install_import_hook

install_import_hook(["heedful.ops", "heedful.layers"], "beartype.beartype")
