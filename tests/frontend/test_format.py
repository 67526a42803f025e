"""The formatter: one layout, comments kept, the same tree, and nothing left to do the second time."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from tree_shape import parsed, shape

from aotdiff.frontend.diagnostics import CompileError
from aotdiff.frontend.format import format_source

CASES = Path(__file__).parents[1] / "cases"
FILES = [path for path in sorted(CASES.glob("*.grad")) if path.stem not in ("err_bracket", "err_mixed")]

BEFORE = """

# header
fn   f( x:f64 [ n ],y :f64)->f64{   # trailing

  let a=x [0]+ -y*  2.0**-y;  let b = - a;   ;
  if a>b{b}

  else   if not  a==b { a } # c
  else{
      # in else
  -a

  }

}


fn h(x: f64[n], n:i64 ,
          f:fn( f64 )->f64) -> f64 {
      var s=0.0   # one
      var ss=x*x-n   # two
@checkpoint( segments=3 )
  for i in n-1 .. -1 step -1 { s+=x[ i , : ][..k][1 ..] }
   let z = foo(|x| {
        let y = x
   y
   }, [
   1.0,
     2.0,
   ])
   let w = a
      + b
        *c
   let short  = t . 0 . 1
   let longer = |a,b:f64[n]|a@b
   assert s>0, "a # b"  # no
   (s,ss)=(ss,s)
   (x
     - 1.0)
}
export  h;export f
"""

AFTER = """# header
fn f(x: f64[n], y: f64) -> f64 {  # trailing
    let a = x[0] + -y * 2.0**-y; let b = -a
    if a > b { b } else if not a == b { a }  # c
    else {
        # in else
        -a
    }
}

fn h(x: f64[n], n: i64,
     f: fn(f64) -> f64) -> f64 {
    var s = 0.0     # one
    var ss = x*x-n  # two
    @checkpoint(segments = 3)
    for i in n-1..-1 step -1 { s += x[i, :][..k][1..] }
    let z = foo(|x| {
        let y = x
        y
    }, [
        1.0,
        2.0,
    ])
    let w = a
        + b
        * c
    let short  = t.0.1
    let longer = |a, b: f64[n]| a @ b
    assert s > 0, "a # b"  # no
    (s, ss) = (ss, s)
    (x
     - 1.0)
}
export h; export f
"""


def test_layout() -> None:
    assert format_source(BEFORE) == AFTER
    assert format_source(AFTER) == AFTER


def test_empty() -> None:
    assert format_source("") == ""
    assert format_source("\n\n# only a comment") == "# only a comment\n"


def test_windows_line_ends_and_byte_order_mark() -> None:
    assert format_source("\ufefffn f() -> f64 = 1.0\r\nexport f\r\n") == "fn f() -> f64 = 1.0\nexport f\n"


def test_syntax_errors_are_raised() -> None:
    with pytest.raises(CompileError) as caught:
        format_source("fn f(x: f64) -> f64 = x x\n", "a.grad")
    assert [(d.path, d.line) for d in caught.value.diagnostics] == [("a.grad", 1)]


def disturbed(source: str, rng: random.Random) -> str:
    """The same program with other spaces and line breaks."""
    out = []
    for line in source.split("\n"):
        if '"' in line or "#" in line:
            out.append(" " * rng.randrange(6) + line)
            continue
        line = re.sub(r" +", lambda _: " " * rng.choice([1, 1, 2, 5]), line)
        line = re.sub(r"([,(])(?! *$)", lambda m: m[1] + rng.choice(["", " ", "\n", "\n  \n"]), line)
        out.append(line + " " * rng.randrange(3))
        out += [""] * rng.choice([0, 0, 0, 2])
    return "\n".join(out)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_files_keep_their_tree_and_comments(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    wanted = shape(parsed(source))
    rng = random.Random(path.stem)
    for text in (source, *(disturbed(source, rng) for _ in range(2))):
        once = format_source(text)
        assert shape(parsed(once)) == wanted
        assert format_source(once) == once
        assert re.findall(r"#.*?(?= *$)", once, re.M) == re.findall(r"#.*?(?= *$)", text, re.M)
