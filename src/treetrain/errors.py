"""Errors a caller may want to act on; everything else is ValueError or TypeError.

With them stand the checks of an argument's type that every floor uses at its public functions, and
what names a file in errors of writing it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from os import PathLike, fspath


class UnsupportedModelError(NotImplementedError):
    """The model, layer, mask or keyword cannot be computed exactly on a tree.

    The message names what was found and what to do instead.
    """


class RandomModelError(UnsupportedModelError):
    """The model draws at random in training, which a shared token cannot do once per sequence.

    Args:
        what: what draws, kept as an attribute.
        way_out: what to do instead.
    """

    def __init__(self, what: str, way_out: str) -> None:
        super().__init__(what, way_out)
        self.what = what

    def __str__(self) -> str:
        return ": ".join(self.args)


class CapacityError(ValueError):
    """A token budget is too small for the work it was given."""


class EquivalenceError(AssertionError):
    """Tree training and separate training differ by more than the dtype's floor."""


def check_type(name: str, value: object, kinds: type | tuple[type, ...], expected: str) -> None:
    """Refuse an argument of another type.

    Args:
        name: the argument's name.
        value: the argument.
        kinds: the types it may have.
        expected: what it must be, and where such a thing comes from.

    Raises:
        TypeError: it has none of the types.
    """
    if not isinstance(value, kinds):
        shown = f" {value!r:.60}" if isinstance(value, str | int | float) else ""
        raise TypeError(f"{name} must be {expected}, got {type(value).__name__}{shown}")


def check_number(name: str, value: object, *, whole: bool = False) -> None:
    """Refuse an argument that is no number; a bool is none.

    Args:
        name: the argument's name.
        value: the argument.
        whole: whether it must be an integer.

    Raises:
        TypeError: it is no number, or no integer.
        ValueError: it is a number that a float cannot hold, where it need not be an integer.
    """
    expected = "an integer" if whole else "a number"
    if isinstance(value, bool):
        raise TypeError(f"{name} must be {expected}, got bool {value}")
    check_type(name, value, Integral if whole else Real, expected)
    if isinstance(value, Real) and not whole:
        try:
            float(value)
        except OverflowError as error:
            raise ValueError(f"{name} must be {expected} that a float holds: {error}") from error


@contextmanager
def naming_file(path: str | PathLike[str]) -> Iterator[None]:
    """Name a file in errors of writing it: the system names none of what comes after opening it.

    Args:
        path: the file.

    Yields:
        Nothing.

    Raises:
        OSError: as it came, with the file.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, fspath(path)) from error
