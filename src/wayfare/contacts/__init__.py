"""Contact plans: which nodes meet, when and for how long.

Design decisions:

- Contacts are exact. Motion is piecewise linear, so the squared distance of two nodes is quadratic on every common leg,
  and contacts start and end at its roots, without time steps.
- A contact counts in the round in which it starts, with its whole length. If contacts were cut into rounds of 10 s, a
  dense upload of the paper's model could never succeed.
- Forecasts are drawn around the plan: a forecast error changes what schemes know, not the world.
"""

from wayfare.contacts.draw import draw_plan, plan_from_drawn, plan_from_meetings, plan_from_motion, plans_from_motion
from wayfare.contacts.export import contact_frame, contact_rows, write_contacts
from wayfare.contacts.forecast import forecast_s
from wayfare.contacts.plan import ContactPlan, Opportunities, PeerOpportunities, opportunities, peer_opportunities
from wayfare.contacts.trace_use import TraceUse, device_names, trace_use

__all__ = [
    "ContactPlan",
    "Opportunities",
    "PeerOpportunities",
    "TraceUse",
    "contact_frame",
    "contact_rows",
    "device_names",
    "draw_plan",
    "forecast_s",
    "opportunities",
    "peer_opportunities",
    "plan_from_drawn",
    "plan_from_meetings",
    "plan_from_motion",
    "plans_from_motion",
    "trace_use",
    "write_contacts",
]
