"""Differentiation of the graph, graph to graph; what comes out is a graph of the same kind, so any order follows.

- `rules`: the derivative of every scalar operation, one table for both modes.
- `forms`: `grad`, `jacobian`, `hvp` and the rest as functions made of `vjp` and `jvp` operations.
- `expand`: replaces those operations by calls of generated functions, innermost first.
- Forward mode: `dependence` (which values have a tangent), `forward` (functions), `forward_sweep` (operations),
  `forward_control` (par, loops, branches, accumulators), `tangents` (types and zeros).
- Reverse mode: `activity`, `prepare`, `reverse` and one `reverse_*` file per construct; `residuals` and `mincut` decide
  what is kept and what is computed again.
"""
