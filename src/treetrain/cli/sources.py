"""Where a named model or tokenizer comes from: a path on this machine, or the hub.

transformers asks the hub for every name that is no path here, and the hub's client tries six times,
for every file anew, before it says that there is no network. So the hub is asked once, beforehand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path

HUB_TIMEOUT = 5.0  # seconds


def find_path(name: str | Path, *, expected: str) -> Path:
    """Takes a name as a path, and refuses one that can only be a path and leads nowhere.

    A name of the hub is `model` or `owner/model`.

    Args:
        name: what the user wrote; `~` is the home folder.
        expected: what it must be, the beginning of the error.

    Returns:
        The path; it exists, or the name may be one of the hub.

    Raises:
        ValueError: it is empty, or it can only be a path, and there is nothing.
    """
    if not os.fspath(name):
        raise ValueError(f"{expected}, got an empty name")
    path = Path(name).expanduser()
    if not path.exists() and _is_path(os.fspath(name)):
        raise ValueError(f"{expected}, got the path {os.fspath(name)!r}, which does not exist")
    return path


def explain(error: Exception, no_hub: str | None) -> str:
    """Says in a sentence what became of a name.

    Args:
        error: what transformers raised.
        no_hub: what `reach_hub` found.

    Returns:
        The end of the error: the fault of a file or folder, or why the hub did not help, and what
        to do.
    """
    first = find_reason(error)
    if no_hub is None:
        return f"that transformers cannot load: {first}"
    return (
        f"that is no file or folder here, and {no_hub}: give the path of a folder, or run again "
        f"where the hub can be reached (transformers: {first})"
    )


def find_reason(error: Exception) -> str:
    """Finds the beginning of an error's message that says what is wrong.

    Args:
        error: what another library raised.

    Returns:
        The first line, and what follows a line that ends with a colon; the error's type where it
        has no message.
    """
    reason: list[str] = []
    for line in str(error).strip().splitlines():
        reason.append(line.strip())
        if not reason[-1].endswith(":"):
            break
    return " ".join(reason) or type(error).__name__


def reach_hub(path: Path) -> str | None:
    """Asks the hub for a sign of life, once, where a name has to be looked up there.

    Args:
        path: the name as a path; the hub is not asked for what exists here.

    Returns:
        None where the hub answers or is not needed; otherwise why it does not, and then only files
        that were downloaded before can be loaded.
    """
    if path.exists():
        return None
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE forbids asking the hub"
    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT)
    # Whatever the client of this version raises: no answer is no answer.
    except Exception as error:  # noqa: BLE001
        return f"{constants.ENDPOINT} cannot be reached ({error})"
    return None


@contextmanager
def without_bars() -> Iterator[None]:
    """Keeps transformers from drawing bars while it loads or saves files.

    Yields:
        While they are off, those of downloads too.
    """
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
    from tqdm.auto import tqdm
    from transformers.utils import logging

    shown, hub_silent = logging.is_progress_bar_enabled(), are_progress_bars_disabled()
    # The reader of GGUF files takes tqdm as it is, past the switch of transformers.
    init = tqdm.__dict__.get("__init__")
    logging.disable_progress_bar()
    setattr(tqdm, "__init__", partialmethod(tqdm.__init__, disable=True))  # noqa: B010
    try:
        yield
    finally:
        if init is None:
            delattr(tqdm, "__init__")
        else:
            setattr(tqdm, "__init__", init)  # noqa: B010
        if shown:
            logging.enable_progress_bar()
        if hub_silent:
            disable_progress_bars()


@contextmanager
def without_warnings() -> Iterator[None]:
    """Keeps transformers from warning of what a look at a model brings up, of missing kernels say.

    Yields:
        While only its errors are written.
    """
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _is_path(name: str) -> bool:
    if name.startswith((".", "~")) or os.path.isabs(name) or name.endswith(".gguf"):
        return True
    return name.count("/") > 1 or name.endswith("/") or (os.sep != "/" and os.sep in name)
