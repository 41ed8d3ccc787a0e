"""The shape of a final answer: any type that msgspec or pydantic can describe."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from quiesce._safe.nested import decoder_of
from quiesce.models import OutputSpec

from .errors import InvalidFinalOutput


class OutputType:
    """A type that the final answer must have, as a JSON schema for the model and a decoder for what it says.

    Providers want an object at the top: any other type is wrapped in one, under `response`.
    """

    __slots__ = ("_decode", "_wrapped", "name", "spec")

    def __init__(self, kind: Any) -> None:
        self.name = getattr(kind, "__name__", str(kind))
        # Known by its methods, so that pydantic need not be imported.
        if _is_pydantic(kind):
            self._wrapped = False
            self._decode = kind.model_validate_json
            schema = kind.model_json_schema()
        else:
            self._wrapped = not _is_object(kind)
            if self._wrapped:
                kind = msgspec.defstruct("Wrapped", [("response", kind)])
            try:
                self._decode = decoder_of(kind)
                schema = _inlined(msgspec.json.schema(kind))
            except TypeError as error:
                raise TypeError(f"{self.name} cannot be the output type of an agent: {error}") from None
        self.spec = OutputSpec(_safe_name(self.name), closed(schema))

    def decode(self, text: str, *, quotes: bool = True) -> Any:
        """The answer as an object of the type, or `InvalidFinalOutput` if it is something else.

        With `quotes` the error quotes the answer.
        """
        try:
            return self.read(text)
        except Exception as error:  # msgspec and pydantic raise errors of their own, and a validator any
            if not quotes:
                told = "; it is in `run_data`, as no guardrail has passed it"
                raise InvalidFinalOutput(f"the final answer is not a valid {self.name}{told}") from error
            raise InvalidFinalOutput(
                f"the final answer is not a valid {self.name}: {error}. It began with {text[:200]!r}"
            ) from error

    def read(self, text: str) -> Any:
        """The same, with the error that msgspec or pydantic raises."""
        value = self._decode(text)
        return value.response if self._wrapped else value


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema with all properties required and no others allowed, as strict providers want it."""
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if isinstance(value, dict):
            out[key] = closed(cast(dict[str, Any], value))
        elif isinstance(value, list):
            out[key] = [closed(v) if isinstance(v, dict) else v for v in value]
        else:
            out[key] = value
    if out.get("type") == "object" and "properties" in out:
        out["additionalProperties"] = False
        out["required"] = list(out["properties"])
        for prop in out["properties"].values():
            if isinstance(prop, dict):
                prop.pop("default", None)
    return out


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace a reference at the top level by what it refers to: providers want an object there."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and "$defs" in schema:
        target = dict(schema["$defs"][reference.rpartition("/")[2]])
        return {**target, "$defs": schema["$defs"]}
    return schema


def _is_pydantic(kind: Any) -> bool:
    return hasattr(kind, "model_validate_json") and hasattr(kind, "model_json_schema")


def _is_object(kind: Any) -> bool:
    try:
        return _inlined(msgspec.json.schema(kind)).get("type") == "object"
    except TypeError:
        return True  # making the decoder will raise an error that says what is wrong


def _safe_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in name)[:64] or "output"
