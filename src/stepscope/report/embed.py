"""Data -> text that stands inside an HTML file, and back: lists of alike records as columns, JSON, gzip, base64.

A thousand steps are some 5 MB of JSON, most of it the names of fields; packed it is about a tenth. Base64 holds no `<`,
`&` or quote, so nothing that a trace says can end the element that holds it. The script in the page does `restore` too.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any

from stepscope.errors import InvariantBroken

_FIELDS, _COLUMNS = "$fields", "$columns"
_LEAST_ROWS = 2  # fewer are shorter as they are
_ELEMENT = '<script type="application/gzip" id="{id}">'


def pack(value: Any) -> Any:
    """Lists of records with the same fields become columns, at every depth; nothing is lost.

    >>> pack([{"a": 1, "b": 2}, {"a": 3, "b": 4}])
    {'$fields': ['a', 'b'], '$columns': [[1, 3], [2, 4]]}
    """
    if isinstance(value, dict):
        if _FIELDS in value:
            raise InvariantBroken(f"a record of the report has a field called {_FIELDS!r}")
        return {key: pack(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) < _LEAST_ROWS or not all(isinstance(item, dict) for item in value):
        return [pack(item) for item in value]
    fields = list(value[0])
    if not fields or any(list(item) != fields for item in value):
        return [pack(item) for item in value]
    return {_FIELDS: fields, _COLUMNS: [pack([item[name] for item in value]) for name in fields]}


def restore(packed: Any) -> Any:
    """What `pack` was given.

    >>> restore({"$fields": ["a", "b"], "$columns": [[1, 3], [2, 4]]})
    [{'a': 1, 'b': 2}, {'a': 3, 'b': 4}]
    """
    if isinstance(packed, list):
        return [restore(item) for item in packed]
    if not isinstance(packed, dict):
        return packed
    if _FIELDS not in packed:
        return {key: restore(item) for key, item in packed.items()}
    columns = [restore(column) for column in packed[_COLUMNS]]
    return [dict(zip(packed[_FIELDS], values, strict=True)) for values in zip(*columns, strict=True)]


def to_base64(text: str) -> str:
    """Compressed, the same bytes for the same text."""
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode("ascii")


def to_element(element_id: str, text: str) -> str:
    """An element of that id that holds the text and runs nothing."""
    return _ELEMENT.format(id=element_id) + to_base64(text) + "</script>"


def to_json(value: Any) -> str:
    """Compact JSON of the packed value."""
    return json.dumps(pack(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def read_element(html: str, element_id: str) -> str:
    """The text that `to_element` put into a page.

    Raises:
        InvariantBroken: the page has no such element.
    """
    found = re.search(re.escape(_ELEMENT.format(id=element_id)) + "([A-Za-z0-9+/=]*)</script>", html)
    if found is None:
        raise InvariantBroken(f"the page holds no element {element_id!r}")
    return gzip.decompress(base64.b64decode(found[1])).decode()


def read_document(html: str) -> dict[str, Any]:
    """The document that a report was made from."""
    document: dict[str, Any] = restore(json.loads(read_element(html, "payload")))["document"]
    return document
