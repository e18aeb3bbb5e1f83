"""Contact plans: which nodes meet, when and for how long."""

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
