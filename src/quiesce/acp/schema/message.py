"""What every message has: fields that its class knows, and those that it does not.

A message is a msgspec struct that takes only the fields it knows, so that the usual message is read and written in one pass of msgspec.
What else the peer has said is kept in `extra_fields`, under the one field that no peer can name: its value is of a class that msgspec
cannot read or write, so that a message which has some is always read by `reading` and written by `writing`, and one that has none never.

The same is done for the discriminator (`type`, `sessionUpdate`, …). To msgspec it is the tag of the class; to Python it is a field too, so
that it can be given to the constructor and read; `tagged` sees to it that it has that one value. Wire names in parentheses are never written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, field

T = TypeVar("T")

DEFAULT_ON_ERROR: Final = "default on error"
DEFAULT_ON_NULL: Final = "default on null"

# What the schema says about a field: a value that is wrong counts as none, and in a list only what is wrong in it is left out.
Lenient = Annotated[T, DEFAULT_ON_ERROR]
# `null` counts as the empty list.
NullIsEmpty = Annotated[T, DEFAULT_ON_NULL]

NonNegative: TypeAlias = Annotated[int, Meta(ge=0)]
Unsigned16: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]
NonEmpty: TypeAlias = Annotated[str, Meta(min_length=1)]

EXTRA: Final = "(extra)"
UNKNOWN: Final = "(unknown)"


class ExtraFields:
    """The fields that a message's class does not know. Not a dict: msgspec must not know what it is."""

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
    """What all messages are, and all that they consist of."""

    field_meta: Lenient[dict[str, Any] | None] = field(default=None, name="_meta")
    _extra: ExtraFields | UnsetType = field(default=UNSET, name=EXTRA)

    @property
    def extra_fields(self) -> dict[str, Any]:
        """What the peer said beyond the fields of this class, and what of those was not as it should be, by wire name.

        It is written again with the message, except for a field that by then has a value of its own. Assign a dict to say more than
        the class can.
        """
        return {} if isinstance(self._extra, UnsetType) else self._extra.fields

    @extra_fields.setter
    def extra_fields(self, fields: Mapping[str, Any]) -> None:
        self._extra = ExtraFields(fields) if fields or isinstance(self, UnknownVariant) else UNSET


class UnknownVariant(Message, kw_only=True):
    """One of several kinds, of a kind that is newer than this release: its discriminator, and all else in `extra_fields`."""

    # Never the default, as a factory makes it: so `writing` writes it, with the kind that it was read with.
    _extra: ExtraFields | UnsetType = field(default_factory=ExtraFields, name=EXTRA)


class ByShape(type):
    """The type of a value that is one of several classes, or a list of such, and has no tag that always says which.

    To a type checker it is the union of them. msgspec cannot read such a union, but calls back for a class that it does not know.
    """

    variants: tuple[type[Message], ...]
    many: bool

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, list if cls.many else cls.variants)


def by_shape(name: str, *variants: type[Message], many: bool = False) -> ByShape:
    """Make one."""
    return ByShape(name, (), {"variants": variants, "many": many, "__slots__": ()})


def tagged(attribute: str, value: str) -> Callable[[Message], None]:
    """A `__post_init__` that lets a class have no discriminator but its own."""
    given = attrgetter(attribute)

    def __post_init__(self: Message) -> None:  # noqa: N807
        if (said := given(self)) is value:
            return
        if said != value:
            raise ValueError(f"{type(self).__name__} has the {attribute} {value!r}, and cannot have {said!r}")
        setattr(self, attribute, value)  # the very string that is the default, which msgspec leaves out

    return __post_init__
