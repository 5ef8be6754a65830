"""From rows of a file to sequences with what is trained in them; numpy and pydantic only."""

from treetrain.data.sample import Sample

__all__ = ["Sample"]
