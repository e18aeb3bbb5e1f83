"""Published methods, one file each: only what differs from Algorithm 1."""
