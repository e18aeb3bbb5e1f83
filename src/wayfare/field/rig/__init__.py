"""The test rig: a fleet on one machine, with emulated contacts, injected faults and an audit of the result."""
