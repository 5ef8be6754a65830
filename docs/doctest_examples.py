"""Lets the site render `Example:` of a docstring as code, as griffe does with `Examples:`."""

from __future__ import annotations

import re
from typing import Any

import griffe


class DoctestExamples(griffe.Extension):
    """Reads `Example:` as the section that griffe calls `Examples:`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Renames the section where an object's docstring is collected.

        Args:
            obj: the module, class, function or attribute.
            _: what else griffe hands over.
        """
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^Example:$", "Examples:", obj.docstring.value, flags=re.M
            )
