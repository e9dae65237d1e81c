"""A reader of pickles that runs nothing: it follows the few opcodes that data needs, over symbols instead of objects.

A pickle is a program for a stack machine; two of its opcodes import what it names and call it. Here names stay
``Name``, values that an ``Interpretation`` compares with what it expects, and what a call would make is for it to say.
Operands are views of the file's bytes. An opcode that is not in the table ends the reading before its operand is
looked at, and so does the ``MAX_OPCODES``-th, so neither time nor memory depends on anything but the file's size.

Opcodes and operands are those of CPython's ``pickletools``, protocols 2 to 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import InvalidRecordError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_OPCODES = 256  # an array takes 60
_MAX_NAME = 256


class Interpretation(Protocol):
    """What names, calls and states mean. Each method raises InvalidRecordError for all that it does not expect."""

    def name(self, module: str, name: str) -> object:
        """Returns what stands for a function or class."""

    def call(self, function: object, arguments: tuple[Any, ...]) -> object:
        """Returns what stands for the result of a call."""

    def build(self, made: object, state: object) -> None:
        """Gives something that was made its state."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a tuple begins on the stack."""


def refused(why: str) -> InvalidRecordError:
    """Returns the error of a file that is no array."""
    return InvalidRecordError(
        f"this is no array as paddle.save writes it: {why}",
        hint="only arrays and tensors of integers are read, and no pickle is ever run",
    )


def follow(data: memoryview, meaning: Interpretation) -> tuple[object, int]:
    """Returns what a pickle leaves behind, and where it ends.

    Raises:
        InvalidRecordError: the file is cut off, has an opcode that does not belong there, or means something else.
    """
    machine = _Machine(data, meaning)
    try:
        machine.run()
        result = machine.stack.pop()
    except (IndexError, KeyError) as err:  # operands, stack entries or memo entries that are not there
        raise refused("it is cut off, or in disorder") from err
    if machine.stack:
        raise refused("it holds something else beside")
    return result, machine.at


class _Machine:
    def __init__(self, data: memoryview, meaning: Interpretation) -> None:
        self.at = 0
        self.stack: list[Any] = []
        self._data = data
        self._meaning = meaning
        self._memo: dict[int, Any] = {}

    def run(self) -> None:
        for _ in range(MAX_OPCODES):
            opcode = self._take(1)[0]
            if opcode == _STOP:
                return
            handler = _HANDLERS.get(opcode)
            if handler is None:
                raise refused(f"opcode {opcode:#04x} at byte {self.at - 1} does not belong in one")
            handler(self)
        raise refused(f"it has more than {MAX_OPCODES} opcodes")

    # --- operands -----------------------------------------------------------------------------------------------

    def _take(self, count: int) -> memoryview:
        if count > len(self._data) - self.at:
            raise IndexError
        piece = self._data[self.at : self.at + count]
        self.at += count
        return piece

    def _number(self, width: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._take(width), "little", signed=signed)

    def _line(self) -> str:
        head = bytes(self._data[self.at : self.at + _MAX_NAME])
        line, found, _ = head.partition(b"\n")
        if not found:
            raise refused("a name in it does not end")
        self.at += len(line) + 1
        return line.decode("latin-1")

    # --- opcodes ------------------------------------------------------------------------------------------------

    def protocol(self) -> None:
        if self._number(1) not in (2, 3, 4):
            raise refused("it is of another pickle protocol than 2 to 4")

    def frame(self) -> None:
        if self._number(8) > len(self._data) - self.at:
            raise IndexError

    def text(self, width: int) -> None:
        raw = self._take(self._number(width))
        try:
            self.stack.append(str(raw, "utf-8"))
        except UnicodeDecodeError as err:
            raise refused("a text in it is no UTF-8") from err

    def raw(self, width: int) -> None:
        self.stack.append(self._take(self._number(width)))

    def integer(self, width: int) -> None:
        self.stack.append(self._number(width, signed=width == 4))

    def long(self) -> None:
        width = self._number(1)
        if width > 8:
            raise refused("a number in it is too large")
        self.stack.append(self._number(width, signed=True))

    def tuple_of(self, count: int) -> None:
        items = [self.stack.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(items)))

    def tuple_to_mark(self) -> None:
        items = []
        while not isinstance(item := self.stack.pop(), Mark):
            items.append(item)
        self.stack.append(tuple(reversed(items)))

    def name(self) -> None:
        module = self._line()
        self.stack.append(self._meaning.name(module, self._line()))

    def stack_name(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(module, str) or not isinstance(name, str):
            raise refused("a name in it is no text")
        self.stack.append(self._meaning.name(module, name))

    def memoize(self, width: int) -> None:
        self._memo[self._number(width) if width else len(self._memo)] = self.stack[-1]

    def recall(self, width: int) -> None:
        self.stack.append(self._memo[self._number(width)])

    def call(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(arguments, tuple):
            raise refused("it calls something with what are no arguments")
        self.stack.append(self._meaning.call(function, arguments))

    def build(self) -> None:
        state = self.stack.pop()
        self._meaning.build(self.stack[-1], state)


_STOP = 0x2E
_HANDLERS: dict[int, Callable[[_Machine], None]] = {
    0x80: _Machine.protocol,
    0x95: _Machine.frame,
    0x28: lambda m: m.stack.append(Mark()),
    0x4A: lambda m: m.integer(4),  # BININT
    0x4B: lambda m: m.integer(1),  # BININT1
    0x4D: lambda m: m.integer(2),  # BININT2
    0x8A: _Machine.long,  # LONG1
    0x4E: lambda m: m.stack.append(None),
    0x88: lambda m: m.stack.append(True),
    0x89: lambda m: m.stack.append(False),
    0x8C: lambda m: m.text(1),  # SHORT_BINUNICODE
    0x58: lambda m: m.text(4),  # BINUNICODE
    0x8D: lambda m: m.text(8),  # BINUNICODE8
    0x43: lambda m: m.raw(1),  # SHORT_BINBYTES
    0x42: lambda m: m.raw(4),  # BINBYTES
    0x8E: lambda m: m.raw(8),  # BINBYTES8
    0x29: lambda m: m.tuple_of(0),  # EMPTY_TUPLE
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    0x74: _Machine.tuple_to_mark,
    0x63: _Machine.name,  # GLOBAL
    0x93: _Machine.stack_name,  # STACK_GLOBAL
    0x71: lambda m: m.memoize(1),  # BINPUT
    0x72: lambda m: m.memoize(4),  # LONG_BINPUT
    0x94: lambda m: m.memoize(0),
    0x68: lambda m: m.recall(1),  # BINGET
    0x6A: lambda m: m.recall(4),  # LONG_BINGET
    0x52: _Machine.call,  # REDUCE
    0x62: _Machine.build,
}
