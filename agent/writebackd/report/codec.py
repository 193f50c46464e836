# SPDX-License-Identifier: GPL-2.0-or-later
"""Encodes frozen values as JSON and decodes them by their fields' types.  Pure.

Fields are named, and omitted if they have their default: a field that a later release adds with a
default does not make older recordings unreadable.
"""

from __future__ import annotations

import dataclasses
from enum import Enum
from functools import lru_cache
from typing import (
    Any,
    Callable,
    Dict,
    List,
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
# Fields of earlier recordings: what another one says, and what one of another form does now.
_GONE = frozenset((
    "flooded_before", "drain_window", "window_limit_bytes", "sync_window", "last_demand_s",
    "drain_limit_bytes", "fast", "filling", "flood_lasted_s", "flush_s", "flushed", "flushes",
    "full_window", "hold", "recent_writes", "tau_s", "throttled", "was_full",
    "cpus_possible",
))  # fmt: skip


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


def pack(value: Any, interned: Interned) -> Any:
    """A dataclass of writebackd.types in the form that json.dumps() takes."""
    kind: Any = type(value)
    return _codec(kind)[0](value, interned)


def unpack(kind: Type[T], packed: Any, interned: Interned) -> T:
    """Reverse pack(). Raises ValueError, TypeError, KeyError, IndexError on other data."""
    declared: Any = kind
    value: T = _codec(declared)[1](packed, interned)
    return value


def _as_it_is(value: Any, interned: Interned) -> Any:
    return value


@lru_cache(maxsize=None)
def _codec(kind: Any, intern: bool = True) -> Tuple[Convert, Convert]:
    """The functions that pack and unpack values of this type."""
    if _is_plain(kind):
        return _as_it_is, _as_it_is
    if intern and kind in _INTERNED:
        return (
            lambda value, interned: interned.number(value),
            lambda packed, interned: interned.values[packed],
        )
    origin, args = get_origin(kind), get_args(kind)
    if origin is Union:
        (present,) = (each for each in args if each is not type(None))
        pack_one, unpack_one = _codec(present)
        return (
            lambda value, interned: None if value is None else pack_one(value, interned),
            lambda packed, interned: None if packed is None else unpack_one(packed, interned),
        )
    if origin is tuple:
        pack_tuple, unpack_tuple = _of_tuple(args)
        return _as_it_is if _packs_itself(kind) else pack_tuple, unpack_tuple
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
        members = {member.value: member for member in kind}
        return lambda value, interned: value.value, lambda packed, interned: members[packed]
    if kind is Histogram:  # as pairs, whatever it keeps
        return (
            lambda value, interned: {"buckets": value.buckets} if value.counts else {},
            lambda packed, interned: Histogram(**packed),
        )
    return _of_fields(kind)


def _is_plain(kind: Any) -> bool:
    """Whether JSON represents the type as it is."""
    if get_origin(kind) is Union:
        return all(_is_plain(each) for each in get_args(kind))
    return kind in (int, float, str, bool, type(None))


def _packs_itself(kind: Any) -> bool:
    """Whether it is plain, or a tuple of plain types: json writes a tuple as a list."""
    if get_origin(kind) is tuple:
        return all(each is ... or _packs_itself(each) for each in get_args(kind))
    return _is_plain(kind)


def _of_tuple(args: Tuple[Any, ...]) -> Tuple[Convert, Convert]:
    if all(each is ... or _is_plain(each) for each in args):
        return _as_it_is, lambda packed, interned: tuple(packed)
    if args[1:] == (...,):
        pack_item, unpack_item = _codec(args[0])
        return (
            lambda value, interned: [pack_item(each, interned) for each in value],
            lambda packed, interned: tuple([unpack_item(each, interned) for each in packed]),
        )
    packers, unpackers = zip(*map(_codec, args))
    return (
        lambda value, interned: [p(each, interned) for p, each in zip(packers, value)],
        lambda packed, interned: tuple([u(each, interned) for u, each in zip(unpackers, packed)]),
    )


def _of_fields(kind: Any) -> Tuple[Convert, Convert]:
    hints, fields = get_type_hints(kind), dataclasses.fields(kind)
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
    needed = codecs.keys() - defaults.keys()

    def pack_fields(value: Any, interned: Interned) -> Any:
        own, packed = value.__dict__, {}
        for name, packer, default in packers:
            field = own[name]
            if field is not default and field != default:
                packed[name] = packer(field, interned)
        return packed

    def unpack_fields(packed: Any, interned: Interned) -> Any:
        if not packed.keys() >= needed:
            raise ValueError(f"{kind.__name__} without {', '.join(needed - packed.keys())}")
        values: Dict[str, Any] = dict(defaults)
        for name, field in packed.items():
            if name in unpackers or name not in _GONE:  # one class may still have it
                values[name] = unpackers[name](field, interned)
        # As replace() of types/copying.py: __init__ of a frozen class takes ten times as long.
        made = object.__new__(kind)
        object.__setattr__(made, "__dict__", values)
        return made

    return pack_fields, unpack_fields
