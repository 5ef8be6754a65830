"""Errors a caller may want to act on; everything else is ValueError or TypeError."""


class UnsupportedModelError(NotImplementedError):
    """The model, layer, mask or keyword cannot be computed exactly on a tree.

    The message names what was found and what to do instead.
    """


class CapacityError(ValueError):
    """A token budget is too small for the work it was given."""


class EquivalenceError(AssertionError):
    """Tree training and separate training differ by more than the dtype's floor."""
