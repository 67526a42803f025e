"""Running on devices.

`targets` makes a function of a program callable there (`stages`: from the program to a plan and code); `binding` takes
its arguments, `native` runs it, `executor` (with `hostops`) does what a launch plan says on a `device`: `cuda` or
`emulated`, found by `devices`; `driver` tells whether there is a GPU at all. `array` and `streams` are arrays there and
the order of work on them; `tensors` is what tensors need besides. `build`, `built` and `standalone` are libraries ahead
of time, `device_function` and `numba_text` functions for kernels of one's own.
"""
