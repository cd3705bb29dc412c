"""Download of models from the Hugging Face hub by their names, with a local cache."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from heedful.errors import ArgumentError, RunError

SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"
DESCRIPTIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "preprocessor_config.json",
    "processor_config.json",
)
EXPECTED = "a directory made by `heedful train`, one in Hugging Face format, or a hub name"
NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


def model_directory(
    path_or_name: str | Path, *, revision: str | None = None, allow_pickle: bool = False
) -> Path:
    """Return the directory of a model, downloaded if there is no local directory of this name.

    Args:
        path_or_name: a directory, or a name on the hub such as `gpt2` or `owner/name`.
        revision: the branch, tag or commit on the hub; default the main branch.
        allow_pickle: whether to download pickled weights if there are no safetensors.

    Raises:
        RunError: there is no such directory, and no such model on the hub or in the cache.
        ArgumentError: a revision is passed with a local directory.
    """
    path = Path(path_or_name)
    if path.is_dir():
        if revision is not None:
            raise ArgumentError(
                f"revision {revision!r} of the directory {str(path)!r}",
                expected="a revision only for a hub name",
                cause="a directory of the same name as a model on the hub",
                remedy="omit the revision, or start in another directory",
            )
        if not (path / "config.json").exists() and (models := _models_in(path)):
            raise RunError(f"{path} is a folder of models", expected=f"one of them: {models}")
        return path
    name = path.as_posix()
    if path.is_file():
        raise RunError(
            f"{path} is a file",
            expected=EXPECTED,
            remedy="pass the directory of the file; heedful.load opens a recording",
        )
    if path.exists() or not NAME.fullmatch(name):
        raise RunError(
            f"no directory {str(path_or_name)!r}",
            expected=EXPECTED,
            remedy="check the path, or create a directory with `heedful train --out DIR`",
        )
    directory = _download(name, revision, SAFE)
    if allow_pickle and not any(directory.glob("*.safetensors")):
        directory = _download(name, revision, PICKLED)
    return directory


def _models_in(folder: Path) -> str:
    """Return the paths of the models in a folder, at most 10, separated by commas."""
    paths = (path.parent for path in sorted(folder.glob("*/config.json")))
    return ", ".join(map(str, itertools.islice(paths, 10)))


def _download(name: str, revision: str | None, weights: str) -> Path:
    """Download a model with its weights: one file, or shards with their index."""
    from huggingface_hub import constants, errors, snapshot_download

    stem, _, suffix = weights.partition(".")
    patterns = [*DESCRIPTIONS, weights, f"{stem}-*.{suffix}", f"{weights}.index.json"]
    models = _models_in(Path(name).parent) if "/" in name else ""
    local = f"one of {models}, or a hub name" if models else None
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except errors.LocalEntryNotFoundError as error:  # a subclass of the errors below
        raise RunError(
            f"no directory {name!r} here, and no network to download a model of this name from the "
            f"hub; the cache {constants.HF_HUB_CACHE} lacks it, too",
            expected=local,
            remedy="check the path, connect once, or set HF_HOME to a folder with the model",
        ) from error
    except errors.HfHubHTTPError as error:
        raise RunError(
            f"no directory {name!r} here, and no such model on the hub"
            f"{f' at revision {revision!r}' if revision else ''} "
            f"({str(error).splitlines()[0]})",
            expected=local,
            cause="a typo, or a model that requires a login",
            remedy="check the name at https://huggingface.co/models",
        ) from error
    except (errors.HFValidationError, OSError) as error:
        raise RunError(f"cannot download {name!r} from the hub: {error}") from error
