"""Who meets whom, when and for how long."""

from wayfare.contacts.draw import draw_plan, plan_from_meetings, plan_from_motion, plans_from_motion
from wayfare.contacts.plan import ContactPlan, Opportunities, PeerOpportunities, opportunities, peer_opportunities

__all__ = [
    "ContactPlan",
    "Opportunities",
    "PeerOpportunities",
    "draw_plan",
    "opportunities",
    "peer_opportunities",
    "plan_from_meetings",
    "plan_from_motion",
    "plans_from_motion",
]
