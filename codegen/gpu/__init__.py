"""Graph -> kernels and a launch plan, for devices with many threads.

The package in the order things happen: `plan` (what the host does, as plain data), `build` (optimised graph -> plan,
and the graphs of its kernels), `kernels` (kernel text by the emitter that CPUs have too), `arena` (memory inside a
thread), `target` (the hooks in which devices differ), `emulated` (a device made of this machine's processor),
`nvptx` and `libdevice` (NVIDIA's GPUs), `device` (functions that other people's kernels call).
"""
