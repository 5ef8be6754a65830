"""The names of the attention backends, for whoever checks one without loading torch."""

from __future__ import annotations

#: One dense mask for a whole model.
MASK = "mask"
#: What a user may ask for: the first, or one by name; "mask" is one
#: dense mask for a whole model, which no layer chooses for itself.
BACKEND_NAMES = ("auto", "slices", "reference", MASK)


def check_backend(name: str) -> None:
    """Refuse a name that is no backend's.

    Args:
        name: what the user asked for.

    Raises:
        ValueError: it is not in `BACKEND_NAMES`.

    Example:
        >>> check_backend("slices")
    """
    if name not in BACKEND_NAMES:
        automatic, *named = BACKEND_NAMES
        raise ValueError(f"backend must be {automatic!r} or one of {named}, got {name!r}")
