"""Convolutions of many devices in one kernel: every device has its own signals and its own weights.

A library sees one small convolution per device. One launch over (device, tile) fills a GPU.
"""
