"use strict";
/* The world of the replay: positions, contacts, and the uploads of each scheme at a time. */
function makeWorld(replay) {
  const ABSENT = 65535, FAILED = 65535, GRID = 65534;
  const kinds = { f4: Float32Array, u2: Uint16Array, u4: Uint32Array };

  function unpack({ kind, base64 }) {
    const text = atob(base64), bytes = new Uint8Array(text.length);
    for (let place = 0; place < text.length; place++) bytes[place] = text.charCodeAt(place);
    return new kinds[kind](bytes.buffer);
  }
  /* The index of the last of sorted numbers that is at most a value; -1 if there is none. */
  function lastUpTo(sorted, value, from = 0, to = sorted.length) {
    let low = from, high = to;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] <= value) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  const contacts = Object.fromEntries(Object.entries(replay.contacts).map(([name, column]) => [name, unpack(column)]));
  const schemes = replay.schemes.map((scheme) => ({ ...scheme, kept: unpack(scheme.kept), bits: unpack(scheme.bits), received: null }));
  const motion = replay.motion && { ...replay.motion, time_s: unpack(replay.motion.time_s), x: unpack(replay.motion.x), y: unpack(replay.motion.y) };
  // Draw a world without positions as a ring around its server.
  const area = motion ? { width_m: motion.width_m, height_m: motion.height_m } : { width_m: 1, height_m: 1 };
  let longest = 0;
  for (let place = 0; place < contacts.start_s.length; place++) longest = Math.max(longest, contacts.end_s[place] - contacts.start_s[place]);

  /* The position of a node in metres from the lower left corner of the area; null while it is absent. */
  function position(node, time_s) {
    if (!motion) {
      const turn = (2 * Math.PI * node) / replay.devices;
      return node === replay.devices ? [0.5, 0.5] : [0.5 + 0.42 * Math.sin(turn), 0.5 + 0.42 * Math.cos(turn)];
    }
    const first = motion.first[node], last = motion.first[node + 1];
    const place = lastUpTo(motion.time_s, time_s, first, last);
    if (place < first || motion.x[place] === ABSENT) return null;
    let x = motion.x[place], y = motion.y[place];
    if (place + 1 < last && motion.x[place + 1] !== ABSENT) {
      const share = (time_s - motion.time_s[place]) / (motion.time_s[place + 1] - motion.time_s[place] || 1);
      x += share * (motion.x[place + 1] - x);
      y += share * (motion.y[place + 1] - y);
    }
    return [(x / GRID) * area.width_m, (y / GRID) * area.height_m];
  }

  /* The indices of the contacts at a time. */
  function contactsAt(time_s) {
    const found = [];
    for (let place = lastUpTo(contacts.start_s, time_s); place >= 0 && contacts.start_s[place] >= time_s - longest; place--) {
      if (contacts.end_s[place] > time_s) found.push(place);
    }
    return found.reverse();
  }
  function nextContact(time_s) {
    const place = lastUpTo(contacts.start_s, time_s) + 1;
    return place < contacts.start_s.length ? contacts.start_s[place] : null;
  }

  /* The outcome of a contact for a scheme: kept share of the update, bits, and whether it completed. */
  function outcome(scheme, contact) {
    const place = contacts.outcome[contact], kept = schemes[scheme].kept[place];
    const failed = kept === FAILED;
    return { failed, kept: failed ? 0 : kept / GRID, bits: (schemes[scheme].bits[place] / GRID) * replay.most_bits };
  }

  function roundAt(time_s) { return Math.floor(time_s / replay.round_s) + 1; }

  /* The times at which each device received a model from a scheme's server, sorted. */
  function received(scheme) {
    if (!schemes[scheme].received) {
      const times = Array.from({ length: replay.devices }, () => []);
      for (let place = 0; place < contacts.start_s.length; place++) {
        if (!outcome(scheme, place).failed) times[contacts.device[place]].push(contacts.start_s[place]);
      }
      schemes[scheme].received = times;
    }
    return schemes[scheme].received;
  }
  /* The staleness of a device's model in rounds; every device starts with the initial model. */
  function age(scheme, device, time_s) {
    const times = received(scheme)[device];
    const last = lastUpTo(times, time_s);
    return roundAt(time_s) - (last < 0 ? 0 : roundAt(times[last]));
  }
  function name(device) { return replay.names ? replay.names[device] : `device ${device}`; }

  return { replay, contacts, schemes, area, motion, position, contactsAt, nextContact, outcome, roundAt, age, name, lastUpTo };
}
