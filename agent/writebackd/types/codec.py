# SPDX-License-Identifier: GPL-2.0-or-later
"""Encodes frozen values as JSON, and decodes and checks them by their fields' types.  Pure.

Fields are named, and omitted if they have their default: a field that a later release adds with a
default does not make older files unreadable, and one that it no longer has is passed over.
"""

from __future__ import annotations

import dataclasses
from enum import Enum
from functools import lru_cache
from typing import (
    Annotated,
    Any,
    Callable,
    Dict,
    List,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from writebackd.types.histogram import Histogram
from writebackd.types.samples import HostInfo
from writebackd.types.storage import Backing, Device

T = TypeVar("T")
# Of a value, or of what JSON gave back; with the table of what was interned.
Convert = Callable[[Any, "Interned"], Any]
# The same from tick to tick: written once, then by number.
_INTERNED: Tuple[Any, ...] = (Device, HostInfo, Backing)


class Interned:
    """Values that are written once; the writer has one table, and the reader its copy."""

    def __init__(self) -> None:
        self.values: List[Any] = []
        self._numbers: Dict[Any, int] = {}
        self.news: List[Any] = []  # since the last take()

    def number(self, value: Any) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
            kind = _INTERNED.index(type(value))
            self.news.append([kind, _codec(_INTERNED[kind], False)[0](value, self)])
        return number

    def take(self) -> List[Any]:
        news, self.news = self.news, []
        return news

    def give(self, news: Sequence[Any]) -> None:
        """For the reader: add values to the table. Raises as `unpack`."""
        for kind, packed in news:
            self.values.append(_codec(_INTERNED[kind], False)[1](packed, self))


def pack(value: Any, interned: Optional[Interned] = None) -> Any:
    """A dataclass in the form that json.dumps() takes."""
    kind: Any = type(value)
    return _codec(kind)[0](value, interned or Interned())


def unpack(kind: Type[T], packed: Any, interned: Optional[Interned] = None) -> T:
    """Reverse pack(). Raises ValueError, which names the field, on other data.

    Of a damaged Histogram, Mapping or number of `interned` also TypeError or IndexError.
    """
    declared: Any = kind
    value: T = _codec(declared)[1](packed, interned or Interned())
    return value


def _as_it_is(value: Any, interned: Interned) -> Any:
    return value


@lru_cache(maxsize=None)
def _codec(kind: Any, intern: bool = True) -> Tuple[Convert, Convert]:
    """The functions that pack and unpack values of this type."""
    if kind in (int, float, str, bool):
        return _as_it_is, _plain((int, float) if kind is float else (kind,))
    if intern and kind in _INTERNED:
        return (
            lambda value, interned: interned.number(value),
            lambda packed, interned: interned.values[packed],
        )
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        pack_bare, unpack_bare = _codec(args[0])
        check = getattr(args[1], "checked", None)
        if check is None:
            return pack_bare, unpack_bare
        return pack_bare, lambda packed, interned: check(unpack_bare(packed, interned))
    if origin is Union:
        (present,) = (each for each in args if each is not type(None))
        pack_one, unpack_one = _codec(present)
        return (
            _as_it_is if pack_one is _as_it_is
            else lambda value, interned: None if value is None else pack_one(value, interned),
            lambda packed, interned: None if packed is None else unpack_one(packed, interned),
        )  # fmt: skip
    if origin is tuple:
        return _of_tuple(args)
    if origin is not None:  # Mapping: its keys need not be text
        (pack_key, unpack_key), (pack_item, unpack_item) = map(_codec, args)
        return (
            lambda value, interned: [
                [pack_key(name, interned), pack_item(each, interned)]
                for name, each in value.items()
            ],
            lambda packed, interned: {
                unpack_key(name, interned): unpack_item(each, interned) for name, each in packed
            },
        )
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda value, interned: value.value, lambda packed, interned: kind(packed)
    if kind is Histogram:  # as pairs, whatever it keeps
        return (
            lambda value, interned: {"buckets": value.buckets} if value.counts else {},
            lambda packed, interned: Histogram(**packed),
        )
    return _of_fields(kind)


def _plain(kinds: Tuple[type, ...]) -> Convert:
    """Reads what JSON represents as it is."""

    def read(packed: Any, interned: Interned) -> Any:
        if type(packed) not in kinds:
            raise ValueError(f"no {kinds[-1].__name__}")
        return packed

    return read


def _of_tuple(args: Tuple[Any, ...]) -> Tuple[Convert, Convert]:
    """json writes a tuple as a list: one of plain values packs itself."""
    endless = args[1:] == (...,)
    packers, unpackers = zip(*map(_codec, args[:1] if endless else args))
    pack_item, unpack_item = packers[0], unpackers[0]

    def unpack_tuple(packed: Any, interned: Interned) -> Any:
        if not isinstance(packed, (list, tuple)) or not (endless or len(packed) == len(args)):
            raise ValueError("no list" if endless else f"no list of {len(args)}")
        if endless:
            return tuple([unpack_item(each, interned) for each in packed])
        return tuple([u(each, interned) for u, each in zip(unpackers, packed)])

    if all(packer is _as_it_is for packer in packers):
        return _as_it_is, unpack_tuple
    if endless:
        return lambda value, interned: [pack_item(each, interned) for each in value], unpack_tuple
    return (
        lambda value, interned: [p(each, interned) for p, each in zip(packers, value)],
        unpack_tuple,
    )


def _of_fields(kind: Any) -> Tuple[Convert, Convert]:
    hints, fields = get_type_hints(kind, include_extras=True), dataclasses.fields(kind)
    defaults: Dict[str, Any] = {}
    for each in fields:
        if each.default is not dataclasses.MISSING:
            defaults[each.name] = each.default
        elif each.default_factory is not dataclasses.MISSING:
            defaults[each.name] = each.default_factory()
    codecs = {each.name: _codec(hints[each.name]) for each in fields}
    none = object()  # is no field's value
    packers = [(name, packer, defaults.get(name, none)) for name, (packer, _) in codecs.items()]
    unpackers = {name: unpacker for name, (_, unpacker) in codecs.items()}

    def pack_fields(value: Any, interned: Interned) -> Any:
        own, packed = value.__dict__, {}
        for name, packer, default in packers:
            field = own[name]
            if field is not default and field != default:
                packed[name] = packer(field, interned)
        return packed

    def unpack_fields(packed: Any, interned: Interned) -> Any:
        if not isinstance(packed, dict):
            raise ValueError("no object")
        values: Dict[str, Any] = dict(defaults)
        for name, field in packed.items():
            unpacker = unpackers.get(name)
            if unpacker is not None:
                try:
                    values[name] = unpacker(field, interned)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
        if len(values) < len(unpackers):
            raise ValueError(f"without {', '.join(sorted(unpackers.keys() - values.keys()))}")
        # As replace() of types/copying.py: __init__ of a frozen class takes ten times as long.
        made = object.__new__(kind)
        object.__setattr__(made, "__dict__", values)
        return made

    return pack_fields, unpack_fields
