"""HTML and SVG as trees of elements.

One idea: nobody writes markup. The standard library's elements are put together here and written out at the end, which is
when every name and every number is escaped, so there is no place where that could be forgotten.
"""

from __future__ import annotations

from typing import TypeAlias
from xml.etree import ElementTree as ET

Child: TypeAlias = "ET.Element | str | int | float"


def node(tag: str, *children: Child, **attributes: str | float | None) -> ET.Element:
    """An element. `class_` is `class`, and `stroke_width` is `stroke-width`; an attribute of None is left out."""
    given = {_spelled(name): _shown(value) for name, value in attributes.items() if value is not None}
    element = ET.Element(tag, given)
    last: ET.Element | None = None
    for child in children:
        if isinstance(child, ET.Element):
            element.append(child)
            last = child
        elif last is None:
            element.text = (element.text or "") + _shown(child)
        else:
            last.tail = (last.tail or "") + _shown(child)
    return element


def written(element: ET.Element) -> str:
    return ET.tostring(element, encoding="unicode", method="html")


def _spelled(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _shown(value: str | float) -> str:
    """Coordinates need no more than a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
