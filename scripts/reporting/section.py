"""The parts of the report's page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading.

    Attributes:
      name: of its template, `templates/NAME.html`, and its anchor.
      title: the heading.
      content: the values for the template. None: the section has only notes.
      notes: sentences about missing parts.
      charts: Vega-Lite specifications by name. Names are unique on the page.
      data: values for the page's script.
    """

    name: str
    title: str
    content: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()
    charts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
