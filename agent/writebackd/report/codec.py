# SPDX-License-Identifier: GPL-2.0-or-later
"""Encodes frozen values as JSON and decodes them by their fields' types.  Pure.

Fields are named and left out where they have their default: what a later release adds to a
value, with a default, does not make older recordings unreadable.
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
    Mapping,
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
Pack = Callable[[Any, "Interned"], Any]
# The same from tick to tick: told once, then by number.
_INTERNED: Tuple[Any, ...] = (Device, HostInfo, Backing)
# Fields of earlier recordings: what another one says, and what one of another form does now.
_GONE = frozenset((
    "flooded_before", "drain_window", "window_limit_bytes", "sync_window", "last_demand_s",
    "drain_limit_bytes", "fast", "filling", "flood_lasted_s", "flushed", "full_window", "hold",
    "recent_writes", "tau_s", "was_full",
))  # fmt: skip


class Interned:
    """The values that are told once; one table for the writer, and its copy for the reader."""

    def __init__(self) -> None:
        self.values: List[Any] = []
        self._numbers: Dict[Any, int] = {}
        self.news: List[Any] = []  # told since the last take()

    def number(self, value: Any) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
            kind = _INTERNED.index(type(value))
            self.news.append([kind, _packer(_INTERNED[kind], False)(value, self)])
        return number

    def take(self) -> List[Any]:
        news, self.news = self.news, []
        return news

    def give(self, news: Sequence[Any]) -> None:
        """The reader's part. Raises as `unpack`."""
        for kind, packed in news:
            self.values.append(_unpacker(_INTERNED[kind], False)(packed, self))


def pack(value: Any, interned: Interned) -> Any:
    """A dataclass of writebackd.types as what json.dumps() takes."""
    kind: Any = type(value)
    return _packer(kind)(value, interned)


def unpack(kind: Type[T], packed: Any, interned: Interned) -> T:
    """What pack() was given. Raises ValueError, TypeError, KeyError, IndexError on other data."""
    declared: Any = kind
    value: T = _unpacker(declared)(packed, interned)
    return value


_MISSING = object()


def _default(each: "dataclasses.Field[Any]") -> Any:
    if each.default is not dataclasses.MISSING:
        return each.default
    if each.default_factory is not dataclasses.MISSING:
        return each.default_factory()
    return _MISSING


def _is_plain(kind: Any) -> bool:
    """Whether JSON takes and gives it as it is."""
    if get_origin(kind) is Union:
        return all(_is_plain(each) for each in get_args(kind))
    return kind in (int, float, str, bool, type(None))


def _optional(kind: Any) -> Any:
    """The type beside None."""
    (inner,) = (each for each in get_args(kind) if each is not type(None))
    return inner


@lru_cache(maxsize=None)
def _packer(kind: Any, intern: bool = True) -> Pack:
    if _is_plain(kind):
        return lambda value, interned: value
    if intern and kind in _INTERNED:
        return lambda value, interned: interned.number(value)
    origin, args = get_origin(kind), get_args(kind)
    if origin is Union:
        inner = _packer(_optional(kind))
        return lambda value, interned: None if value is None else inner(value, interned)
    if origin is tuple:
        if _packs_itself(kind):
            return lambda value, interned: value  # json writes a tuple as a list
        if args[1:] == (...,):
            item = _packer(args[0])
            return lambda value, interned: [item(each, interned) for each in value]
        items = [_packer(each) for each in args]
        return lambda value, interned: [p(each, interned) for p, each in zip(items, value)]
    if origin is not None:  # Mapping: its keys need not be text
        key, item = (_packer(each) for each in args)
        return lambda value, interned: [
            [key(name, interned), item(each, interned)] for name, each in value.items()
        ]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda value, interned: value.value
    if kind is Histogram:  # as pairs, whatever it keeps
        return lambda value, interned: {"buckets": value.buckets} if value.counts else {}
    hints = get_type_hints(kind)
    fields = [
        (each.name, _packer(hints[each.name]), _default(each))
        for each in dataclasses.fields(kind)
    ]

    def of_fields(value: Any, interned: Interned) -> Any:
        own, packed = value.__dict__, {}
        for name, packer, default in fields:
            field = own[name]
            if field is not default and field != default:
                packed[name] = packer(field, interned)
        return packed

    return of_fields


def _packs_itself(kind: Any) -> bool:
    if get_origin(kind) is tuple:
        return all(each is ... or _packs_itself(each) for each in get_args(kind))
    return _is_plain(kind)


@lru_cache(maxsize=None)
def _unpacker(kind: Any, intern: bool = True) -> Pack:
    if _is_plain(kind):
        return lambda packed, interned: packed
    if intern and kind in _INTERNED:
        return lambda packed, interned: interned.values[packed]
    origin, args = get_origin(kind), get_args(kind)
    if origin is Union:
        inner = _unpacker(_optional(kind))
        return lambda packed, interned: None if packed is None else inner(packed, interned)
    if origin is tuple:
        if args[1:] == (...,):
            if _is_plain(args[0]):
                return lambda packed, interned: tuple(packed)
            item = _unpacker(args[0])
            return lambda packed, interned: tuple([item(each, interned) for each in packed])
        if all(_is_plain(each) for each in args):
            return lambda packed, interned: tuple(packed)
        items = [_unpacker(each) for each in args]
        return lambda packed, interned: tuple(
            [u(each, interned) for u, each in zip(items, packed)]
        )
    if origin is not None:
        key, item = (_unpacker(each) for each in args)
        return lambda packed, interned: {
            key(name, interned): item(each, interned) for name, each in packed
        }
    if isinstance(kind, type) and issubclass(kind, Enum):
        members = {member.value: member for member in kind}
        return lambda packed, interned: members[packed]
    if kind is Histogram:
        return lambda packed, interned: Histogram(**packed)
    return _fields_unpacker(kind)


def _fields_unpacker(kind: Any) -> Pack:
    hints = get_type_hints(kind)
    unpackers = {each.name: _unpacker(hints[each.name]) for each in dataclasses.fields(kind)}
    defaults: Mapping[str, Any] = {
        each.name: default
        for each in dataclasses.fields(kind)
        for default in [_default(each)]
        if default is not _MISSING
    }
    needed = unpackers.keys() - defaults.keys()

    def of_fields(packed: Any, interned: Interned) -> Any:
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

    return of_fields

