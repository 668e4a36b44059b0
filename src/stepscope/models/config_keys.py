"""The keys of a config.json, read one by one, with a note of which key each dimension came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.errors import BadInput


class ConfigKeys:
    """A config.json (its text part, where it has one) that remembers what was read from where."""

    def __init__(self, raw: Mapping[str, Any], source: str, known: tuple[str, ...]) -> None:
        inner = raw.get("text_config")
        self._prefix = "text_config." if isinstance(inner, Mapping) else ""
        self._raw: Mapping[str, Any] = {**inner} if isinstance(inner, Mapping) else raw
        self._outer = raw
        self.source = source
        self.known = known
        self.read: dict[str, str] = {}

    @property
    def model_type(self) -> str:
        """Which family the file says it is of."""
        return str(self._raw.get("model_type", self._outer.get("model_type", "?")))

    def number(self, dimension: str, *keys: str) -> int:
        """A dimension, from the first of `keys` that is there (the dimension's own name where none is given).

        Raises:
            BadInput: none of the keys is there, or its value is no whole number.
        """
        value = self.optional_number(dimension, *keys)
        if value is None:
            wanted = " or ".join(f"`{key}`" for key in keys or (dimension,))
            raise BadInput(
                f"{self.source} has no {wanted} (model_type '{self.model_type}'), so {dimension} is unknown. "
                f"Known families: {', '.join(self.known)}. Complete the file, or use --trace-model."
            )
        return value

    def optional_number(self, dimension: str, *keys: str) -> int | None:
        """Like `number`, None where no key is there."""
        for key in keys or (dimension,):
            value = self._raw.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise BadInput(f"{self.source}: `{self._prefix}{key}` is {value!r}; a whole number was expected.")
            self.read[dimension] = self._prefix + key
            return value
        return None

    def derived(self, dimension: str, how: str) -> None:
        """Note a dimension that no key gives."""
        self.read[dimension] = how

    def numbers(self, key: str) -> list[int] | None:
        """A list of whole numbers; None where the key is not there."""
        value = self._list(key, int)
        return value if value is None else [int(item) for item in value]

    def words(self, key: str) -> list[str] | None:
        """A list of words; None where the key is not there."""
        value = self._list(key, str)
        return value if value is None else [str(item) for item in value]

    def _list(self, key: str, kind: type) -> list[Any] | None:
        value = self._raw.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            raise BadInput(f"{self.source}: `{self._prefix}{key}` is not a list of {kind.__name__}.")
        self.read[key] = self._prefix + key
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """A yes or no; `default` where the key is not there."""
        value = self._raw.get(key, self._outer.get(key, default))
        return bool(value)

    def word(self, key: str) -> str | None:
        """One word; None where the key is not there."""
        value = self._raw.get(key, self._outer.get(key))
        return value if isinstance(value, str) else None

    def table(self, key: str) -> Mapping[str, Any]:
        """A nested object; empty where the key is not there."""
        value = self._raw.get(key, self._outer.get(key))
        return value if isinstance(value, Mapping) else {}
