"""GPUs: what differs from CPUs in text and targets. PTX from LLVM, libdevice, device functions, launch plans."""
