"""Results for people: tables, curves and figures.

Design decisions:

- A page is one file. The charting library is inside and a content policy forbids fetches. Positions are not recorded:
  the world is drawn again and must match the recorded contacts.
- A verdict claims no more than the seeds allow. Schemes whose paired interval contains 0 are listed as not
  distinguished.
"""
