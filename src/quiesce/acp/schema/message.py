"""The base class of all messages: it has the fields that its class knows, and keeps those that it does not.

A message is a msgspec struct that accepts only the fields it knows, so that the usual message is read and
written in one pass of msgspec. Everything else that the peer sent is kept in `extra_fields`, under a field
that no peer can set: its value is of a class that msgspec can neither read nor write. So a message with extra
fields is always read by `reading` and written by `writing`, and a message without them never is.

The discriminator (`type`, `sessionUpdate`, …) works in a similar way. To msgspec it is the tag of the class;
to Python it is a field as well, so that it can be passed to the constructor and read. `tagged` makes sure
that it has that one value. Wire names in parentheses are never written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, field

T = TypeVar("T")

DEFAULT_ON_ERROR: Final = "default on error"
DEFAULT_ON_NULL: Final = "default on null"

# What the schema says about a field: a wrong value counts as none, and of a list only the wrong items are
# left out.
Lenient = Annotated[T, DEFAULT_ON_ERROR]
# `null` counts as an empty list.
NullIsEmpty = Annotated[T, DEFAULT_ON_NULL]

NonNegative: TypeAlias = Annotated[int, Meta(ge=0)]
Unsigned16: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]
NonEmpty: TypeAlias = Annotated[str, Meta(min_length=1)]

EXTRA: Final = "(extra)"
UNKNOWN: Final = "(unknown)"


class ExtraFields:
    """The fields that a message's class does not know. Not a dict, so that msgspec cannot write it."""

    __slots__ = ("fields",)

    def __init__(self, fields: Mapping[str, Any] | None = None) -> None:
        self.fields = dict(fields or {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExtraFields) and self.fields == other.fields

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.fields)


class Message(
    Struct,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    repr_omit_defaults=True,
    rename="camel",
):
    """The base class of all messages and of their parts."""

    field_meta: Lenient[dict[str, Any] | None] = field(default=None, name="_meta")
    _extra: ExtraFields | UnsetType = field(default=UNSET, name=EXTRA)

    @property
    def extra_fields(self) -> dict[str, Any]:
        """The fields, by wire name, that this class does not know, and the invalid values of those it knows.

        They are written with the message again, except for a field that has got a value of its own meanwhile.
        Assign a dict to send more than the class can express.
        """
        return {} if isinstance(self._extra, UnsetType) else self._extra.fields

    @extra_fields.setter
    def extra_fields(self, fields: Mapping[str, Any]) -> None:
        self._extra = ExtraFields(fields) if fields or isinstance(self, UnknownVariant) else UNSET


class UnknownVariant(Message, kw_only=True):
    """A member of a union whose kind is newer than this release; all its fields are in `extra_fields`."""

    # The default comes from a factory, so that no value is ever identical to it and msgspec always meets this
    # field. So `writing` writes the message, with the kind that it was read with.
    _extra: ExtraFields | UnsetType = field(default_factory=ExtraFields, name=EXTRA)


class ByShape(type):
    """The type of a value of one of several classes, or of a list of them, that have no common tag.

    To a type checker it is the union of them. msgspec cannot read such a union, but calls a hook for a class
    that it does not know.
    """

    variants: tuple[type[Message], ...]
    many: bool

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, list if cls.many else cls.variants)


def by_shape(name: str, *variants: type[Message], many: bool = False) -> ByShape:
    """Make a `ByShape` type of these classes; with `many`, a list of them."""
    return ByShape(name, (), {"variants": variants, "many": many, "__slots__": ()})


def tagged(attribute: str, value: str) -> Callable[[Message], None]:
    """Return a `__post_init__` that rejects every discriminator but the class's own."""
    discriminator = attrgetter(attribute)

    def __post_init__(self: Message) -> None:  # noqa: N807
        if (passed := discriminator(self)) is value:
            return
        if passed != value:
            raise ValueError(
                f"the {attribute} of {type(self).__name__} is {value!r}, and cannot be {passed!r}"
            )
        # Replaced by the identical string: msgspec leaves a field out only if its value is the default
        # itself.
        setattr(self, attribute, value)

    return __post_init__
