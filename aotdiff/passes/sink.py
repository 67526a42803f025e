"""sink-arms: what only one side of a choice needs moves into a branch, so that the other side's derivative is nothing.

The derivative of a select is that of the side taken, and the other side contributes exactly nothing even where its
partial derivatives are infinite or NaN. Routing a zero into that side is not enough (0 times inf is NaN), so before
differentiation

    %1 = log %x
    %2 = select %c, %1, %0

becomes an `if` with the `log` inside; what was computed before an `if` for one of its sides moves there too. Only
operations used by nothing but that side move (or by that side of several selects on one condition), from the first
whose partials may be infinite or NaN: reads and index arithmetic stay. Elements of arrays are followed into the
element-wise `par` that makes them, if it makes them for nothing else. Checks stay outside: both sides of a select are
evaluated, and an index error of either is raised.

Generated derivatives are treated before they are reversed in their turn: functions in which differentiation wrote
choices say so (`choices`). There a chain of partials may end in a select (of a guarded tangent, see `ad.guards`), or an
adjoint be computed before the branch that is its only use.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from aotdiff.ir.graph import Func, Module, Op, Region, Value
from aotdiff.ir.ops import SCALAR_OPS
from aotdiff.ir.rewrite import Env, copy_op, copy_region
from aotdiff.ir.types import Acc, is_differentiable
from aotdiff.passes.facts import functions_that_check, has_effects
from aotdiff.passes.registry import register_some

# Their partials are finite constants whatever the operands (abs of NaN has a NaN partial), or they have none.
_SAFE = frozenset((
    "const", "add", "sub", "neg", "select", "cast", "read", "update", "insert", "reshape", "shaped", "dim", "argsort",
    "undef", "stop_gradient", "sign", "floor", "ceil", "round", "yield", "check", "accum",
))


@register_some("sink-arms", "Move what only one side of a choice needs into a branch.")
def sink_arms(module: Module, funcs: list[Func]) -> None:
    checking = functions_that_check(module)
    for func in funcs:
        if _has_arms(func) and any(op.name in ("select", "if") for op in func.body.walk()):
            _Sinker(func, checking).region(func.body)


def _has_arms(func: Func) -> bool:
    """Whether the code is the program's, or what differentiation made of it and is to be reversed now."""
    return "choices" in func.attrs or func.attrs.get("derived", ("form",))[0] in ("form", "result")


def is_risky(op: Op) -> bool:
    """Whether a partial derivative of the operation can be infinite or NaN."""
    if op.name in _SAFE:
        return False
    if op.name in SCALAR_OPS:
        if not is_differentiable(op.result.type):
            return False
        factor = op.operands[-1] if op.name == "div" else next(filter(_is_constant, op.operands), op.operands[0])
        return not (op.name in ("mul", "div") and _is_constant(factor))
    if op.name == "call":
        return True
    return any(is_risky(inner) for region in op.regions for inner in region.ops)


def _is_constant(value: Value) -> bool:
    """A finite literal other than 0."""
    op = value.op
    return op is not None and op.name == "const" and 0 < abs(op.attrs["value"]) < float("inf")


class _Sinker:
    """Works on one function; keeps track of who uses what, and of which region each operation stands in."""

    def __init__(self, func: Func, checking: set[str]):
        self.checking = checking
        self.users: dict[Value, dict[Op, None]] = {}
        self.home: dict[Op, Region] = {}
        self.owner: dict[Region, Op] = {}
        # Places of the operations of the region at hand, and what is to be put where an operation was.
        self.place: dict[Op, int] = {}
        self.instead: dict[Op, list[Op]] = {}
        self.enter(func.body)

    # Bookkeeping ---------------------------------------------------------------------------------------------

    def enter(self, region: Region) -> None:
        for op in region.ops:
            self.add(op, region)

    def add(self, op: Op, home: Region) -> None:
        self.home[op] = home
        for v in op.operands:
            self.users.setdefault(v, {})[op] = None
        for inner in op.regions:
            self.owner[inner] = op
            self.enter(inner)

    def forget(self, op: Op) -> None:
        for v in op.operands:
            self.users.get(v, {}).pop(op, None)

    def within(self, op: Op, region: Region) -> Op:
        """The operation of `region` that `op` is, or is inside."""
        while self.home[op] is not region:
            op = self.owner[self.home[op]]
        return op

    def settle(self, region: Region) -> None:
        """Write the region's list anew and number it."""
        if self.instead:
            region.ops = [new for op in region.ops for new in self.current(op)]
            self.instead = {}
        self.place = {op: k for k, op in enumerate(region.ops)}

    def current(self, op: Op) -> Iterator[Op]:
        """What stands where `op` was."""
        for new in self.instead.get(op, (op,)):
            if new is op:
                yield op
            else:
                yield from self.current(new)

    def replace(self, op: Op, new: list[Op]) -> None:
        """Put `new` where `op` was; the list itself is written by `settle`."""
        self.instead[op] = new
        for each in new:
            self.place[each] = self.place[op]

    # One region ----------------------------------------------------------------------------------------------

    def region(self, region: Region, in_branch: bool = False) -> None:
        self.settle(region)
        if in_branch:
            for op in list(region.ops):
                if op.name == "read":
                    self.forwarded(op, region)
        groups: dict[Value, list[Op]] = {}
        for op in region.ops:
            if op.name == "select" and is_differentiable(op.result.type):
                groups.setdefault(op.operands[0], []).append(op)
        for group in groups.values():
            if not self.convert(region, group) and len(group) > 1:
                for select in group:
                    self.convert(region, [select])
        self.settle(region)
        for op in reversed(list(region.ops)):
            if op.name == "if" and op not in self.instead:
                self.fill(region, op)
        self.settle(region)
        for op in list(region.ops):  # what is followed into a `par` of this region goes from the list
            for inner in op.regions:
                self.region(inner, in_branch or op.name == "if")

    def fill(self, region: Region, branch: Op) -> None:
        """Move into the sides of an `if` what was computed before it for one of them only."""
        for side in branch.regions:
            takes = lambda user, _, side=side: self.inside(user, side)  # noqa: E731
            moved = self.cone(region, list(_uses_in(side)), takes, [])
            for op, copies in self.left_behind(region, moved).items():
                self.replace(op, copies)
            for op in moved:
                self.instead.setdefault(op, [])
                self.home[op] = side
            side.ops = [*moved, *side.ops]

    def inside(self, op: Op, region: Region) -> bool:
        """Whether the operation stands in the region, or in one inside it."""
        home = self.home[op]
        while home is not region:
            if home not in self.owner:
                return False
            home = self.home[self.owner[home]]
        return True

    def convert(self, region: Region, group: list[Op]) -> bool:
        """Make the selects one branch; False if they cannot be one."""
        sides = []
        for side in (1, 2):
            takes = lambda user, value, side=side: user in group and not any(  # noqa: E731
                v is value for k, v in enumerate(user.operands) if k != side
            )
            sides.append(self.cone(region, [select.operands[side] for select in group], takes, group))
        if not any(sides):
            return True
        members = [s for s in group if any(s.operands[1 + k].op in side for k, side in enumerate(sides))]
        moved = {op for side in sides for op in side}
        late = self.dependents(region, members, moved)
        if any(v.op in late or v.op in members for v in self.captured(moved, members)):
            return False
        _Branch(self, region, members, sides, late).build()
        return True

    def cone(self, region: Region, roots: list[Value], takes: Callable[[Op, Value], bool], stay: list[Op]) -> list[Op]:
        """What moves, in order: needed by nothing but users that `takes(user, value)`, and risky or using what is.

        Operations in `stay` do not.
        """
        found: set[Op] = set()
        pending: list[tuple[int, Op]] = []
        seen: set[Op] = set(stay)

        def push(value: Value) -> None:
            op = value.op
            if op is not None and op not in seen and self.home[op] is region:
                seen.add(op)
                heapq.heappush(pending, (-self.place[op], op))  # places differ: operations are not compared

        for root in roots:
            push(root)
        while pending:
            _, op = heapq.heappop(pending)
            if not self.movable(op) or not self.only_for(op, region, takes, found):
                continue
            if op.name == "read" and (value := self.forwarded(op, region)) is not None:
                pending = [(-self.place[o], o) for _, o in pending]
                heapq.heapify(pending)
                push(value)
                continue
            found.add(op)
            for v in _uses(op):
                push(v)
        moved: dict[Op, None] = {}
        for op in sorted(found, key=self.place.__getitem__):
            if is_risky(op) or any(v.op in moved for v in _uses(op) if v.op is not None):
                moved[op] = None
        return list(moved)

    def movable(self, op: Op) -> bool:
        """No effect but checks, which are left behind."""
        if op.name in ("check", "accum", "yield"):
            return False
        return not any(isinstance(v.type, Acc) and self.outside(v, op) for v in _uses(op))

    def outside(self, handle: Value, op: Op) -> bool:
        """Whether the handle comes from around the operation."""
        region = handle.owner
        while isinstance(region, Region) and region in self.owner:
            if self.owner[region] is op:
                return False
            region = self.home[self.owner[region]]
        return True

    def only_for(self, op: Op, region: Region, takes: Callable[[Op, Value], bool], found: set[Op]) -> bool:
        return all(
            takes(user, result) or self.within(user, region) in found
            for result in op.results
            for user in self.users.get(result, ())
        )

    def dependents(self, region: Region, members: list[Op], moved: set[Op]) -> set[Op]:
        """Operations between the first and the last member that have to come after the branch."""
        late: set[Op] = set()
        first, last = self.place[members[0]], self.place[members[-1]]
        late_effect = False
        between = (new for op in region.ops[first + 1 : last] for new in self.current(op))
        for op in between:
            if op in members or op in moved:
                continue
            after = late_effect and op.name not in SCALAR_OPS
            if after or any(v.op in late or v.op in members for v in _uses(op) if v.op is not None):
                late.add(op)
                late_effect = late_effect or op.name not in SCALAR_OPS
        return late

    def captured(self, moved: set[Op], members: list[Op]) -> Iterator[Value]:
        for op in moved:
            yield from (v for v in _uses(op) if v.op not in moved)
        for select in members:
            yield from (v for v in select.operands if v.op not in moved)

    def left_behind(self, region: Region, moved: list[Op]) -> dict[Op, list[Op]]:
        """Copies that stay outside for the sake of checks in them, with what they need.

        A call, whose checks stay in both, works on constants outside: it must not become one with the call that moves.
        """
        wanted: set[Op] = set()
        for op in reversed(moved):
            if op in wanted or self.checks(op):
                wanted.add(op)
                wanted.update(v.op for v in _uses(op) if v.op is not None)
        copies: dict[Op, list[Op]] = {}
        env: Env = {}
        for op in moved:
            if op in wanted:
                constants = _constants(op, env) if _calls(op) else []
                copies[op] = [*constants, copy_op(op, env)]
                for each in copies[op]:
                    self.add(each, region)
                for inner in op.regions:
                    _drop_checks(inner)
        return copies

    def checks(self, op: Op) -> bool:
        return _may_stop(op, self.checking) or any(
            _may_stop(inner, self.checking) for region in op.regions for inner in region.walk()
        )

    # Elements of arrays ----------------------------------------------------------------------------------------

    def forwarded(self, read: Op, region: Region) -> Value | None:
        """Write the element's computation in place of a read of a `par` made only for it; None if it is not."""
        source = self.source(read)
        if source is None or not self.once_each(read, source.owner):
            return None
        par = source.op
        assert par is not None
        env: Env = dict(zip(par.regions[0].args, read.operands[1:], strict=True))
        copy = copy_region(Region([], par.regions[0].ops), env)
        _drop_checks(copy)
        value = copy.yielded[source.index]
        self.forget(read)
        self.replace(read, copy.ops[:-1])
        self.settle(region)
        for op in copy.ops[:-1]:
            self.add(op, region)
        for user in self.users.pop(read.result, {}):
            user.operands = [value if v is read.result else v for v in user.operands]
            self.users.setdefault(value, {})[user] = None
        link = read.operands[0].op
        while link is not None and link is not par:  # `shaped`, from the last to the first
            self.drop_unused(link)
            link = link.operands[0].op
        self.drop_result(par, source.index)
        return value

    def drop_result(self, par: Op, index: int) -> None:
        """Take a map of scalars that nobody reads any more out of a `par`, and what was computed for it alone."""
        (body,) = par.regions
        end = body.terminator
        self.forget(end)
        end.operands = [v for k, v in enumerate(end.operands) if k != index]
        par.attrs = {**par.attrs, "kinds": tuple(kind for k, kind in enumerate(par.attrs["kinds"]) if k != index)}
        del par.results[index]
        for k, result in enumerate(par.results):
            result.index = k
        for v in end.operands:
            self.users.setdefault(v, {})[end] = None
        for op in reversed(body.ops[:-1]):
            self.drop_unused(op)
        self.drop_unused(par)

    def drop_unused(self, op: Op) -> None:
        if any(self.users.get(r) for r in op.results) or has_effects(op, self.checking):
            return
        self.home[op].ops.remove(op)
        self.forget(op)
        for region in op.regions:
            for inner in region.walk():
                self.forget(inner)

    def source(self, read: Op) -> Value | None:
        """The result of a `par` that this read is the only use of, if it is a map of scalars without effects."""
        value, user = read.operands[0], read
        while len(self.users[value]) == 1 and user.operands.count(value) == 1:
            op = value.op
            if op is None:
                return None
            if op.name == "shaped":
                value, user = op.operands[0], op
                continue
            if op.name != "par" or op.attrs["kinds"][value.index] != "map" or not self.movable(op):
                return None
            return value if op.attrs["rank"] == len(read.operands) - 1 else None
        return None

    def once_each(self, read: Op, owner: object) -> bool:
        """Whether the read happens at most once an element: its indices are those of all loops around it."""
        indices = set(read.operands[1:])
        if len(indices) != len(read.operands) - 1 or not isinstance(owner, Op):
            return False
        target, region = self.home[owner], self.home[read]
        while region is not target:
            op = self.owner[region]
            if op.name in ("for", "while") or (op.name == "par" and not indices >= set(region.args)):
                return False
            region = self.home[op]
        return True


def _uses(op: Op) -> Iterator[Value]:
    """Values the operation uses, inside too."""
    yield from op.operands
    for region in op.regions:
        for inner in region.ops:
            yield from _uses(inner)


def _uses_in(region: Region) -> Iterator[Value]:
    for op in region.ops:
        yield from _uses(op)


def _may_stop(op: Op, checking: set[str]) -> bool:
    return op.name == "check" or op.attrs.get("callee") in checking


def _calls(op: Op) -> bool:
    return op.name == "call" or any(inner.name == "call" for region in op.regions for inner in region.walk())


def _constants(op: Op, env: Env) -> list[Op]:
    """`stop_gradient` of the floats an operation uses from around it; `env` learns them."""
    inside = {v for region in op.regions for v in _defined(region)}
    made: list[Op] = []
    for v in _uses(op):
        if v not in inside and v not in env and is_differentiable(v.type):
            made.append(Op("stop_gradient", [v], [v.type], loc=op.loc))
            env[v] = made[-1].result
    return made


def _defined(region: Region) -> Iterator[Value]:
    yield from region.args
    for op in region.ops:
        yield from op.results
        for inner in op.regions:
            yield from _defined(inner)


def _drop_checks(region: Region) -> None:
    region.ops = [op for op in region.ops if op.name != "check"]
    for op in region.ops:
        for inner in op.regions:
            _drop_checks(inner)


class _Branch:
    """Writes one `if` for selects on one condition."""

    def __init__(self, sinker: _Sinker, region: Region, members: list[Op], sides: list[list[Op]], late: set[Op]):
        self.sinker = sinker
        self.region = region
        self.members = members
        self.sides = sides
        self.late = late

    def build(self) -> None:
        sinker, last = self.sinker, self.members[-1]
        for side in self.sides:
            for op, copies in sinker.left_behind(self.region, side).items():
                sinker.replace(op, copies)
        for op in (op for side in self.sides for op in side):
            if op not in sinker.instead:
                sinker.instead[op] = []
        for select in self.members[:-1]:
            sinker.instead[select] = []
        branch = self.branch()
        sinker.replace(last, [branch])
        if self.late:
            sinker.settle(self.region)
            late = [op for op in self.region.ops if op in self.late]
            kept = [op for op in self.region.ops if op not in self.late]
            at = kept.index(branch) + 1
            self.region.ops = kept[:at] + late + kept[at:]
            sinker.settle(self.region)

    def branch(self) -> Op:
        """The `if`; it takes over the results of the selects."""
        sinker, condition = self.sinker, self.members[0].operands[0]
        regions = []
        for k, side in enumerate(self.sides):
            end = Op("yield", [select.operands[1 + k] for select in self.members], [], loc=self.members[0].loc)
            regions.append(Region([], [*side, end]))
        branch = Op("if", [condition], [], {}, regions, self.members[0].loc)
        for select in self.members:
            sinker.forget(select)
            result = select.result
            result.owner, result.index = branch, len(branch.results)
            branch.results.append(result)
        sinker.home[branch] = self.region
        sinker.users.setdefault(condition, {})[branch] = None
        for region in regions:
            sinker.owner[region] = branch
            for op in region.ops:
                sinker.home[op] = region
            for v in region.terminator.operands:
                sinker.users.setdefault(v, {})[region.terminator] = None
        return branch
