"""The same algorithm on real machines that come and go. The only package that imports nats."""
