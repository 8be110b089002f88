"""Ops in C++ behind a C ABI: built by the system's compiler on first use, cached, bound with ctypes."""
