"""Converts plain JSON values into messages, slowly and carefully: for messages that msgspec alone rejects.

- Fields that a class does not know go into `extra_fields`; kinds that a union does not know become its
  `UnknownVariant`. Nothing is lost.
- Where the schema says that a wrong value counts as none (`Lenient`), the field has its default, and the
  wrong value is in `extra_fields`; of a list, only the wrong items are left out.
- Any other wrong value raises an `InvalidMessage` that says where it is, what it is, and what was expected.

Readers are made from the annotations of the classes when they are first needed, and kept.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta

from .message import DEFAULT_ON_ERROR, DEFAULT_ON_NULL, ByShape, ExtraFields, Message, UnknownVariant

# The position of a value: that of its container, and its name or index there. A linked list, because it costs
# little to extend, and most positions are never shown.
Path: TypeAlias = "tuple[Path, str | int] | None"
Reader: TypeAlias = Callable[[Any, Path], Any]

_WORDS = {str: "a string", int: "an integer", float: "a number", bool: "true or false", NoneType: "null"}


class InvalidMessage(ValueError):
    """A message does not conform to its type.

    `method` is the method that the message belongs to; `path` is the field that is wrong, "" for the whole
    message.
    """

    def __init__(self, path: str, problem: str, expected: str, method: str | None = None) -> None:
        super().__init__(path, problem, expected, method)
        self.path = path
        self.problem = problem
        self.expected = expected
        self.method = method

    def __str__(self) -> str:
        prefix = f"{self.method}: " if self.method else ""
        where = f"`{self.path}`" if self.path else "the message"
        return f"{prefix}{where} {self.problem}"

    def as_data(self) -> dict[str, str]:
        """Return the problem as the `data` of an error for the peer."""
        named = {"method": self.method, "path": self.path, "problem": self.problem, "expected": self.expected}
        return {name: value for name, value in named.items() if value}


def read(value: Any, kind: Any) -> Any:
    """Return the message that a plain value describes."""
    return reader_of(kind)(value, None)


_readers: dict[Any, Reader] = {}


def reader_of(kind: Any) -> Reader:
    """Return the function that reads values of a type."""
    if (reader := _readers.get(kind)) is None:
        reader = _readers[kind] = _make_reader(kind)
    return reader


def _make_reader(kind: Any) -> Reader:
    if kind is Any:
        return lambda value, path: value
    if isinstance(kind, ByShape):
        variants = _Variants(kind.variants).read
        return _items(list, variants) if kind.many else variants
    if isinstance(kind, type) and issubclass(kind, Message):
        return _Fields(kind).read
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is list:
        return _items(list, reader_of(arguments[0]))
    if origin is dict:
        return _items(dict, reader_of(arguments[1]))
    if origin is UnionType or origin is Union:
        members = tuple(member for member in arguments if member is not NoneType)
        if len(members) == 1 or all(
            isinstance(member, type) and issubclass(member, Message) for member in members
        ):
            reader = reader_of(members[0]) if len(members) == 1 else _Variants(members).read
            return reader if len(members) == len(arguments) else _or_none(reader)
    return _value(kind)


def _or_none(reader: Reader) -> Reader:
    return lambda value, path: None if value is None else reader(value, path)


def _items(container: type[list[Any] | dict[str, Any]], reader: Reader) -> Reader:
    def read_list(value: Any, path: Path) -> Any:
        if not isinstance(value, list):
            raise _wrong(value, path, "a list")
        return [reader(item, (path, index)) for index, item in enumerate(value)]

    def read_dict(value: Any, path: Path) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, path, "an object")
        return {name: reader(item, (path, name)) for name, item in value.items()}

    return read_list if container is list else read_dict


def _value(kind: Any) -> Reader:
    """Return a reader for strings, numbers and the like, which leaves them to msgspec."""

    def read_value(value: Any, path: Path) -> Any:
        if type(value) is float and value.is_integer() and _plain(kind) is int:
            # To JSON 1.0 is an integer, to msgspec it is not.
            value = int(value)
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            raise _wrong(value, path, _expected(kind)) from None

    return read_value


class _Fields:
    """Reads objects into one message class."""

    def __init__(self, kind: type[Message]) -> None:
        self.kind = kind
        self.fields: dict[str, _Field] = {}
        self.tag_field: str | None = kind.__struct_config__.tag_field
        self.tag = kind.__struct_config__.tag
        # For an unknown variant: the attribute that receives the tag.
        self.tag_name = ""
        for info in msgspec.structs.fields(kind):
            if not info.encode_name.startswith("("):
                self.fields[info.encode_name] = _Field(info)
            elif info.encode_name == f"({self.tag_field})":
                self.tag_name = info.name
        self.required = {name for name, one in self.fields.items() if one.required}

    def read(self, value: Any, path: Path) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, path, "an object")
        attributes: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for name, item in value.items():
            if (known := self.fields.get(name)) is not None:
                known.read(item, (path, name), attributes, extra)
            elif name != self.tag_field:
                extra[name] = item
            elif issubclass(self.kind, UnknownVariant):
                attributes[self.tag_name] = item
            elif item != self.tag:
                raise _wrong(item, (path, name), repr(self.tag))
        if not self.required <= value.keys():
            missing = min(self.required - value.keys())
            raise InvalidMessage(_text((path, missing)), "is missing", self.fields[missing].expected)
        if extra:
            attributes["_extra"] = ExtraFields(extra)
        return self.kind(**attributes)


class _Field:
    """Reads one field of a class."""

    def __init__(self, info: msgspec.structs.FieldInfo) -> None:
        remarks = info.type.__metadata__ if get_origin(info.type) is Annotated else ()
        self.name = info.name
        self.required = info.required
        self.lenient = DEFAULT_ON_ERROR in remarks
        self.null_is_empty = DEFAULT_ON_NULL in remarks
        kind = get_args(info.type)[0] if self.lenient or self.null_is_empty else info.type
        self.expected = _expected(kind)
        self.reader = reader_of(kind)
        lists = [one for one in (kind, *get_args(kind)) if get_origin(one) is list]
        self.item_reader = reader_of(get_args(lists[0])[0]) if lists else None
        self.default_on_null = self.null_is_empty or info.default not in (NODEFAULT, None)
        self.default_on_null |= info.default_factory is not NODEFAULT

    def read(self, value: Any, path: Path, attributes: dict[str, Any], extra: dict[str, Any]) -> None:
        if value is None and (self.default_on_null or (self.lenient and self.required)):
            if self.required:
                attributes[self.name] = []
            return
        try:
            attributes[self.name] = self.reader(value, path)
        except InvalidMessage:
            if not self.lenient:
                raise
            assert path is not None
            extra[str(path[1])] = value
            if self.item_reader is not None and isinstance(value, list):
                attributes[self.name] = list(self.good_items(value, path))
            elif self.required:
                attributes[self.name] = []

    def good_items(self, items: list[Any], path: Path) -> Any:
        assert self.item_reader is not None
        for index, item in enumerate(items):
            try:
                yield self.item_reader(item, (path, index))
            except InvalidMessage:
                pass


class _Variants:
    """Reads an object into one of several classes: by its tag, by its fields, or as the unknown variant."""

    def __init__(self, kinds: tuple[type[Message], ...]) -> None:
        self.unknown = next((one for one in kinds if issubclass(one, UnknownVariant)), None)
        self.known = [one for one in kinds if one is not self.unknown]
        self.tag_field = next((field for one in self.known if (field := _tag_field(one))), "")

    def read(self, value: Any, path: Path) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, path, "an object")
        return reader_of(self.choose(value, path))(value, path)

    def choose(self, value: dict[str, Any], path: Path) -> type[Message]:
        tagged = [
            one
            for one in self.known
            if (tag := one.__struct_config__.tag) and tag == value.get(_tag_field(one))
        ]
        candidates = tagged or [one for one in self.known if one.__struct_config__.tag is None]
        fitting = [one for one in candidates if _fields_of(one).required <= value.keys()]
        if fitting:
            return fitting[0]
        if self.unknown is not None and not tagged and isinstance(value.get(_tag_field(self.unknown)), str):
            return self.unknown
        if len(candidates) == 1:
            # Its reader raises the error that names the missing field.
            return candidates[0]
        if candidates:
            needs = " or ".join(
                ", ".join(f"`{name}`" for name in sorted(_fields_of(one).required)) for one in candidates
            )
            raise InvalidMessage(_text(path), f"must have {needs}", f"an object with {needs}")
        expected = "one of " + ", ".join(repr(one.__struct_config__.tag) for one in self.known)
        tag_path = (path, self.tag_field)
        if self.tag_field not in value:
            raise InvalidMessage(_text(tag_path), f"is missing, and must be {expected}", expected)
        raise _wrong(value[self.tag_field], tag_path, expected)


def _fields_of(kind: type[Message]) -> _Fields:
    fields: _Fields = reader_of(kind).__self__  # type: ignore[attr-defined]
    return fields


def _tag_field(kind: type[Message]) -> str:
    return kind.__struct_config__.tag_field or ""


def _wrong(value: Any, path: Path, expected: str) -> InvalidMessage:
    return InvalidMessage(_text(path), f"must be {expected}, not {_describe(value)}", expected)


def _text(path: Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, key = path
        parts.append(f"[{key}]" if isinstance(key, int) else f".{key}")
    return "".join(reversed(parts)).removeprefix(".")


def _describe(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f"the string {value!r}" if len(value) <= 60 else f"the string {value[:60]!r}…"
    if isinstance(value, int | float):
        return f"the number {str(value)[:60]}"
    return "a list" if isinstance(value, list) else "an object"


def _plain(kind: Any) -> Any:
    return _plain(get_args(kind)[0]) if get_origin(kind) is Annotated else kind


def _expected(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        limits = next((one for one in arguments[1:] if isinstance(one, Meta)), Meta())
        description = _expected(arguments[0])
        if limits.ge is not None:
            description += f" from {limits.ge}" + (f" to {limits.le}" if limits.le is not None else " up")
        return description + (" that is not empty" if limits.min_length else "")
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(map(repr, arguments))
    if origin is UnionType or origin is Union:
        return " or ".join(dict.fromkeys(map(_expected, arguments)))
    if origin is list or (isinstance(kind, ByShape) and kind.many):
        return "a list"
    return _WORDS.get(kind, "any value" if kind is Any else "an object")
