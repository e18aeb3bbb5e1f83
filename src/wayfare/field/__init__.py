"""The same algorithm on real machines that come and go. The only package that imports nats.

How nothing is lost and nothing counted twice
---------------------------------------------

A device and the mobile edge server (MES) meet for seconds, over a broker (NATS JetStream) that keeps messages while
one of them is away. Any of the three may lose its power at any moment, and the broker may then forget what it has
acknowledged. So neither side believes the broker; each believes its own SQLite file, and what the other says of *its*.

*Mass* is what a device has learned and not delivered. It lies in exactly one place, and moves in one transaction:

    base - local         what the trainer has learned since the last cut (g in Algorithm 1)
    memory               what was cut and not sent: error feedback (e)
    outbox               chunks of the open update: promised to the server, not known to be recorded
    the server's ledger  recorded chunks, each exactly once: the global model is their replay

Methods whose memory forgets, and servers that mix models, conserve no mass. Their chunks are counted all the same.

1. **Cut** (device, one transaction). `wayfare.device.contact` decides what goes, as in the simulator, with its checks:
   x is what the memory rule makes of memory and base - local. The payload is entries of x, or the whole local model
   where the server rule takes models. It is split into chunks, the largest entries first, each a message of
   `wayfare.codec.wire`. Outbox += chunks, base = local; memory and the states of the method's parts are those after the
   contact. There is at most one open update; its number is never used again.
2. **Ask.** In a contact the device first asks ``up.<device>.ask`` which chunks of its open update are recorded. An
   update of this very contact is resumed. An older one is *sealed*: the server promises, durably, to record no more of
   it, and the memory rule takes back what was not recorded, to compete with what was learned since. A model that was
   sealed half way is void: the server uses none of it, and the device still has all that it learned.
3. **Send.** Chunks go to ``up.<device>.chunk``, into the stream, a few at a time. The broker's ack moves the window
   and means nothing else. A chunk acked and not recorded for some seconds goes again under a new message id.
4. **Record** (server, one transaction for a batch). Whose it is comes from the subject, which the broker enforces. The
   server records what is valid and not there yet. What is due goes through the server rule as one version of the
   model: pieces at once if the rule takes pieces, otherwise updates that are whole or sealed. Then the server acks,
   then it publishes the mark ``applied.<device>``. Killed in between, it gets the message again and finds it recorded.
5. **Settle** (device, one transaction). Chunks with a mark leave the outbox; only the server's word removes them.
6. **Finish and receive.** With the outbox empty the device asks ``up.<device>.finish`` for the model: a delta against
   the version it has, if that is smaller, else the whole. Behind it comes what the server rule hands to this device,
   such as SCAFFOLD's correction. The device pulls the bytes part by part (``up.<device>.part``), so a cut costs one
   part, and believes them only with their digests. One transaction takes both: base = the model, local = the model and
   what the trainer learned meanwhile.

A delta holds the new values of entries that changed, not differences: what arrives is the server's model to the bit.

The server's ledger is the truth and its model file a shortcut. The file holds the model, what the server rule remembers
and, with `server.average_rounds`, the mean of the models, which is judged and handed on. On a start the server reads
the file and replays what was recorded since through the rule. A rule gets the device, its round and staleness (from the
chunk's header), its samples and the reach of its steps (which the server knows itself). The reach is unknown if the
device received no model since its previous update: the header says which version it has.

`Gathering` says when recorded chunks are applied: on arrival, where every version counts as a round of the mean, or
round by round with everyone whom a plan has in that round, all upload and then all download, as in the simulator. With
a plan, and trainers that take the plan's steps, devices and server end with the simulator's model.

Trainer and exchanger of a device share its store and nothing else. Learning that goes on during an exchange is kept:
it is base - local, whatever base has become. A proximal term pulls towards the last model, not towards base.

Only methods whose parts are pure run here. Methods with peers are rejected: they need connections among devices.
"""
