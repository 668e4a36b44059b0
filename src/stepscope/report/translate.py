"""English display text -> another language, by message catalogs (`locale/*.toml`); English is the source.

A sentence made from a template is translated by its template, with the same values; what a catalog does not hold stays
English. A catalog is a table `[text]` from English to the other language, holes in braces kept.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from stepscope.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

ENGLISH = "en"


@dataclass(frozen=True, slots=True, kw_only=True)
class Translator:
    """`translator(text)` is the text in the report's language; `messages` are the document's."""

    lang: str = ENGLISH
    catalog: Mapping[str, str] = field(default_factory=dict)
    messages: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, text: str) -> str:
        """Translate a constant text, or a sentence that the document has a message for."""
        if not self.catalog:
            return text
        if text in self.catalog:
            return self.catalog[text]
        message = self.messages.get(text)
        if message is None or message["template"] not in self.catalog:
            return text
        values = {name: self(value) if value != text else value for name, value in message["values"].items()}
        return self.catalog[message["template"]].format(**values)


def known_languages() -> tuple[str, ...]:
    """English, and one for each catalog."""
    folder = files("stepscope.report") / "locale"
    found = [entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")]
    return (ENGLISH, *sorted(found))


def make_translator(lang: str, document: Mapping[str, Any]) -> Translator:
    """A translator for one document.

    Raises:
        BadInput: no catalog of that language is shipped.
    """
    if lang == ENGLISH:
        return Translator()
    if lang not in known_languages():
        raise BadInput(f"--lang {lang!r} is not known. Known: {', '.join(known_languages())}.")
    text = (files("stepscope.report") / "locale" / f"{lang}.toml").read_text(encoding="utf-8")
    return Translator(lang=lang, catalog=tomllib.loads(text)["text"], messages=document.get("messages", {}))
