"""The server and device processes, with the files and messages that they use to exchange updates.

Design decisions:

- The ledger is the model. Replaying it through the server rule gives a bit-identical model. It grows with every upload
  and drops nothing.
- Chunks hold the largest entries first, so a cut loses the least important part.
- Energy is billed when it is decided, as in the simulator. A cut refunds nothing.
- Any message is a sign of life. A ping can queue behind a model on a slow link. Half a second without any message while
  a ping is unanswered counts as a loss, and the connection is dropped, not closed.
"""
