"""The test rig: a fleet on one machine, with emulated contacts, injected faults and an audit of the result.

Design decisions:

- A plan's clock can wait. In the demo every planned exchange takes place, however slow the machine, so real processes
  reach the simulator's model. A strict clock ends contacts on schedule.
- Emulated air delivers bytes after their airtime, in pieces of 10 ms. Bytes on the air when a contact ends are lost. In
  accelerated time rates grow with the clock.
"""
