"""Types of tangents, and zeros where one has to be written out."""

from __future__ import annotations

import zlib

from aotdiff.ad.dependence import Dependence
from aotdiff.ir.builder import Builder
from aotdiff.ir.graph import Module, Value
from aotdiff.ir.types import Acc, Array, Record, Scalar, Type


class Tangents:
    """Tangent types for one analysis: that of a residual record has a field per active field of the record."""

    __slots__ = ("module", "dependence", "_records", "_open")

    def __init__(self, module: Module, dependence: Dependence):
        self.module = module
        self.dependence = dependence
        self._records: dict[str, Record] = {}
        self._open: set[str] = set()

    def signature(self) -> tuple:
        """Distinguishes analyses in which records have different active fields."""
        names = sorted(self.dependence.fields)
        return tuple((name, self.dependence.record_mask(name)) for name in names)

    def type_of(self, type_: Type) -> Type:
        """Type of the tangent of a value of this type."""
        if isinstance(type_, Record):
            return self._record(type_)
        if isinstance(type_, Array) and isinstance(type_.element, Record):
            return Array(self._record(type_.element), type_.dims)
        return type_

    def _record(self, record: Record) -> Record:
        if record.name not in self._records:
            # The fields of records inside this one depend on the analysis too.
            name = f"{record.name}_tan_{zlib.crc32(repr(self.signature()).encode()):08x}"
            self._records[record.name] = Record(name)  # entered first: a recursive record refers to itself
            fields, mask = self.module.records[record.name], self.dependence.record_mask(record.name)
            self.module.records[name] = tuple(self.type_of(fields[i]) for i in mask)
        return self._records[record.name]

    def zero(self, b: Builder, value: Value) -> Value:
        """The zero tangent of a value, in its shape; undefined for an undefined value."""
        type_ = value.type
        assert not isinstance(type_, Acc)
        if value.op is not None and value.op.name == "undef":
            return b.undef(self.type_of(type_))
        if isinstance(type_, Scalar):
            return b.const(0.0, type_)
        if isinstance(type_, Record):
            return self._zero_record(b, value, type_)
        if isinstance(type_.element, Record):
            body = lambda b, *at: [self.zero(b, b.read(value, *at))]  # noqa: E731
            return b.par(b.dims(value), ["map"], body)[0]
        return b.fill(b.const(0.0, type_.element), b.dims(value))

    def _zero_record(self, b: Builder, value: Value, record: Record) -> Value:
        if record.name in self._open:
            raise NotImplementedError(f"the zero tangent of a record that contains itself: {record.name}")
        self._open.add(record.name)
        fields = b.emit("record_unpack", [value], self.module.records[record.name]).results
        mask = self.dependence.record_mask(record.name)
        zeros = [self.zero(b, fields[i]) for i in mask]
        self._open.remove(record.name)
        tangent = self._record(record)
        return b.emit("record_make", zeros, [tangent], {"record": tangent.name}).result
